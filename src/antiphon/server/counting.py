"""How many tokens a request has: the upstream's own count where it can say, within a time limit.

Owns the question and the answers that were given, kept by content. It never raises for what an upstream
does: a count that cannot be had is None, and the caller's estimate stands.

    counter = TokenCounter("tokenize", "http://127.0.0.1:8000/v1", session)
    await counter.count(chat_request.body)   -> 31100
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from msgspec import Raw

from antiphon.core.dialects.address import API_VERSION, below, key_header
from antiphon.core.dialects.chat_request import tokens_of_bytes
from antiphon.core.dialects.messages_request import count_body
from antiphon.core.dialects.quirk_facts import Auth, TokenRoute
from antiphon.core.recognise import root_url
from antiphon.server.prefixes import Chain

KEPT = 512  # counts
TIME_LIMIT = 2.0  # seconds for a client that asks
LARGEST = 1024 * 1024  # bytes of a body that is read again beside streams: more would hold up the loop
_LONG_TAIL = 64 * 1024  # bytes that a known prefix may leave over
IN_STREAM_LIMIT = 0.2  # seconds for `message_start`: the first token is worth more

_COUNTED = (
    "model",
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
_read = msgspec.json.Decoder(dict[str, Raw]).decode


class PrefixCounts:
    """What earlier turns of conversations counted: a turn's prompt begins with the whole of the last one's.

    Learns from what upstreams report; a request that goes on with a known conversation then starts with
    that count and an estimate of only what is new. Of one upstream, whose models count differently.
    """

    def __init__(self, kept: int = 2048) -> None:
        self._kept = kept
        self._known: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def learn(self, model: str, chain: Chain, tokens: int) -> None:
        """The upstream counted `tokens` for the prompt with this chain (`prefixes.prefix_chain`)."""
        if not chain:
            return
        key = (model, chain[-1].digest)
        self._known[key] = tokens
        self._known.move_to_end(key)
        if len(self._known) > self._kept:
            self._known.popitem(last=False)

    def guess(self, model: str, chain: Chain) -> int | None:
        """Tokens of the longest known prefix and an estimate of the rest; None if nothing of it is known."""
        for prefix in reversed(chain):
            new = chain[-1].size - prefix.size
            if new > _LONG_TAIL:
                break  # most of it is new: the request's own estimate knows better
            key = (model, prefix.digest)
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key] + tokens_of_bytes(new)
        return None


def _chat_question(chat_body: bytes) -> bytes:
    return msgspec.json.encode({name: value for name, value in _read(chat_body).items() if name in _COUNTED})


class TokenCounter:
    """`route` is the quirk `tokenizer`. `session` is the caller's to close."""

    def __init__(
        self,
        route: TokenRoute,
        base_url: str,
        session: aiohttp.ClientSession | None,
        api_key: str | None = None,
        auth: Auth = "bearer",
    ) -> None:
        self._url = {
            "none": "",
            "tokenize": f"{root_url(base_url)}/tokenize",
            "input_tokens": below(base_url, "/chat/completions/input_tokens"),
            "count_tokens": below(base_url, "/messages/count_tokens"),
        }[route]
        self._native = route == "count_tokens"
        self._session = session
        self._headers = dict([key_header(auth, api_key)]) if api_key else {}
        if self._native:
            self._headers["anthropic-version"] = API_VERSION
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def available(self) -> bool:
        return bool(self._url) and self._session is not None

    async def count(self, chat_body: bytes, *, limit: float = TIME_LIMIT) -> int | None:
        """Tokens of a Chat Completions request body, None if the upstream does not say within `limit` s."""
        if not self.available:
            return None
        question = count_body(chat_body) if self._native else _chat_question(chat_body)
        key = hashlib.sha256(question).digest()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        tokens = await self._ask(question, limit)
        if tokens is not None:
            self._known[key] = tokens
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return tokens

    def tell(self, chat_body: bytes, told: Callable[[int], None]) -> asyncio.Task[None] | None:
        """Count beside a running request; `told` is called if the answer comes in time. Cancel at will."""
        if not self.available or len(chat_body) > LARGEST:
            return None

        async def asking() -> None:
            tokens = await self.count(chat_body, limit=IN_STREAM_LIMIT)
            if tokens is not None:
                told(tokens)

        task = asyncio.get_running_loop().create_task(asking())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask(self, question: bytes, limit: float) -> int | None:
        session = self._session
        if session is None:
            return None
        headers = {**self._headers, "content-type": "application/json"}
        try:
            async with session.post(
                self._url,
                data=question,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=limit),
                allow_redirects=False,
            ) as answer:
                document: Any = msgspec.json.decode(await answer.read()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, OSError):
            return None
        if not isinstance(document, dict):
            return None
        tokens = document.get("count", document.get("input_tokens"))
        return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else None

    async def aclose(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
