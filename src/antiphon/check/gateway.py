"""Plays the corpus through a running gateway and says case by case what is wrong.

Owns the client's side of the play and the verdict of a case; the bytes of the upstream are `stand_in`'s,
the rules `grammar`'s, the comparisons `compare`'s. One case at a time: the stand-in has one answer.

    async with StandIn(19000) as upstream:
        player = Player("http://127.0.0.1:8080", upstream)
        verdicts = [await player.play(case) for case in load()]
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any, Final, Literal

import aiohttp
from msgspec import Struct

from antiphon.check import compare
from antiphon.check.corpus import Case
from antiphon.check.frames import read_frames
from antiphon.check.grammar import judge, table
from antiphon.check.stand_in import StandIn

# Cases that are about the envelope itself; elsewhere what clients survive would hide worse faults.
_ENVELOPE: Final = frozenset(("ENV-05", "ENV-06", "THK-11"))
_MODEL_NAME: Final = frozenset(("ENV-04",))
_REQUEST_ID: Final = frozenset(("ERR-02", "ERR-11"))
# [DONE] ends the message at once: seconds that the whole exchange may take although the upstream hangs.
_AT_MOST: Final = {"END-12": 1.5}
_MOST_BYTES: Final = 16 * 1024 * 1024  # of an answer; no case asks for more than a few lines


class CannotRun(Exception):  # noqa: N818 - not an error of the program
    """There is nothing to judge: no gateway, or its upstream is another server. The text says what to do."""


class Answer(Struct):
    """What the gateway answered. `whole` is False when its HTTP message was cut off."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    seconds: float

    @property
    def text(self) -> str:
        """The body, as text, short."""
        return compare.show(self.body.decode("utf-8", "replace"))


class Verdict(Struct):
    """The outcome of one case; `sentence` says what was wrong, `contested` how projects disagree."""

    id: str
    area: str
    title: str
    outcome: Literal["holds", "fails"]
    sentence: str = ""
    symptom: str = ""
    contested: str | None = None


class Player:
    """Plays cases through the gateway at `url`; `prefix` stands before `/v1/messages`.

    `timeout` is in seconds, for each request.
    """

    def __init__(
        self,
        url: str,
        upstream: StandIn,
        *,
        prefix: str = "",
        model: str = "a-model",
        key: str = "test-key",
        timeout: float = 15.0,
    ) -> None:
        base = url.rstrip("/").removesuffix("/v1/messages").removesuffix("/v1")
        self._base = base + ("/" + prefix.strip("/") if prefix.strip("/") else "")
        self._upstream = upstream
        self._model = model
        self._headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "anthropic-version": "2023-06-01",
            "x-api-key": key,
            "authorization": f"Bearer {key}",
        }
        self._timeout = timeout

    async def prepare(self) -> None:
        """Ask one plain question. Raises `CannotRun` if no gateway answers, or it asks another upstream."""
        self._upstream.play(None)
        try:
            answer = await self._send("POST", "/v1/messages", self._question())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise CannotRun(f"no gateway answers at {self._base}: {_words(error)}") from error
        if not self._upstream.requests:
            raise CannotRun(
                f"the gateway answered HTTP {answer.status} and did not ask {self._upstream.base_url}, which"
                " this check plays. Start it with that upstream, and let any model name through."
                f" It said: {answer.text}"
            )

    async def play(self, case: Case) -> Verdict:
        """The verdict of a playable case. Never raises: an odd answer is a verdict too."""
        try:
            sentence = await self._judge(case)
        except TimeoutError:
            sentence = f"no end after {self._timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            sentence = f"the connection failed: {_words(error)}"
        except Exception as error:  # noqa: BLE001 - whatever a gateway sends, the run goes on and says so
            sentence = f"the answer could not be judged: {_words(error)}"
        return Verdict(
            id=case.id,
            area=case.area,
            title=case.title,
            outcome="fails" if sentence else "holds",
            sentence=sentence or "",
            symptom=case.symptom,
            contested=str(case.contested) if case.contested else None,
        )

    async def _judge(self, case: Case) -> str | None:
        if case.kind in ("anthropic_request", "http_request"):
            return await self._judge_request(case)
        self._upstream.play(case.trigger)
        question = self._question() | {"stream": True} | case.trigger.get("request", {})
        answer = await self._send("POST", "/v1/messages", question | {"model": self._model})
        most = _AT_MOST.get(case.id)
        if most is not None and answer.seconds > most:
            return f"the answer ended {answer.seconds:.1f} s after the request, [DONE] ends it at once"
        if "events" in case.expected:
            return self._judge_stream(case, answer)
        return judge_http(case.expected, answer, case.trigger, request_id=case.id in _REQUEST_ID)

    def _judge_stream(self, case: Case, answer: Answer) -> str | None:
        if answer.status != 200:
            return f"HTTP {answer.status}: {answer.text}"
        content_type = answer.headers.get("content-type", "")
        if not content_type.startswith("text/event-stream"):
            return f"the content type is {content_type!r}, not text/event-stream"
        frames, framing = read_frames(answer.body)
        if framing:
            return str(framing[0])
        if not answer.whole:
            return "the HTTP body was cut off"
        events = [frame.event for frame in frames if frame.event is not None]
        broken = [v for v in judge(events) if case.id in _ENVELOPE or not v.survivable]
        if broken:
            return str(broken[0])
        if len(self._upstream.requests) > 1:
            return f"the upstream was asked {len(self._upstream.requests)} times for one question"
        return compare.stream_difference(
            case.expected["events"], events, self._model, judge_model=case.id in _MODEL_NAME
        )

    async def _judge_request(self, case: Case) -> str | None:
        self._upstream.play(None)
        trigger, expected = case.trigger, case.expected
        payload = trigger.get("raw_body", trigger.get("body"))
        if isinstance(payload, dict):
            payload = {**payload, "model": self._model}
        answer = await self._send(
            trigger.get("method", "POST"),
            trigger.get("path", "/v1/messages"),
            payload,
            trigger.get("headers"),
        )
        asked = self._upstream.requests[-1] if self._upstream.requests else None
        if "upstream_never" in expected:
            if asked is None:
                return f"HTTP {answer.status}, and the upstream was asked nothing"
            if found := compare.leaked(expected, asked.headers, asked.body):
                return found
        if "http_status" in expected:
            return judge_http(expected, answer, trigger, request_id=case.id in _REQUEST_ID)
        if answer.status != 200:
            return f"HTTP {answer.status}: {answer.text}"
        tail = expected.get("openai_tail")
        want = dict(expected.get("openai") or {})
        if tail is None and not want:
            return None
        if asked is None:
            return "the upstream was asked nothing"
        if tail is not None or case.forms == "any":
            return compare.pieces_missing(tail or want.get("messages", []), asked.body)
        absent = want.pop("assert_absent", expected.get("assert_absent", []))
        return compare.request_difference(want, asked.body, self._model, absent=absent)

    def _question(self) -> dict[str, Any]:
        return {"model": self._model, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}

    async def _send(
        self, method: str, path: str, payload: object, headers: Mapping[str, str] | None = None
    ) -> Answer:
        data = json.dumps(payload) if isinstance(payload, dict | list) else payload
        loop = asyncio.get_running_loop()
        began = loop.time()
        body, whole = bytearray(), True
        # A connection for each case: what one case broke must not reach the next.
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                method,
                self._base + path,
                data=data,
                headers={**self._headers, **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=self._timeout),
                allow_redirects=False,
            ) as response,
        ):
            try:
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise ValueError(f"more than {_MOST_BYTES >> 20} MiB came")
            except aiohttp.ClientPayloadError:
                whole = False
            answered = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, answered, bytes(body), whole, loop.time() - began)


def judge_http(
    expected: Mapping[str, Any], answer: Answer, trigger: Mapping[str, Any], *, request_id: bool = False
) -> str | None:
    """An answer that is one JSON body: its status, its shape, its headers. None: as expected."""
    if answer.status != expected["http_status"]:
        return f"HTTP {answer.status}, expected {expected['http_status']}: {answer.text}"
    try:
        body = table(json.loads(answer.body))
    except ValueError:
        return f"the body is not JSON: {answer.text}"
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return f"the content type is {answer.headers.get('content-type')!r}, not application/json"
    return (
        _body_difference(expected.get("body"), body, answer)
        or _shape_difference(expected.get("body_shape") or {}, body)
        or (_request_id_difference(body, answer) if request_id else None)
        or _header_difference(expected.get("headers") or {}, answer.headers, trigger.get("headers") or {})
    )


def _body_difference(want: object, body: dict[str, Any], answer: Answer) -> str | None:
    if not isinstance(want, dict) or not want:
        return None
    if "error" not in want:
        return compare.difference(want, body, "")
    error = table(body.get("error"))
    if body.get("type") != "error" or not isinstance(error.get("message"), str):
        return f"not an Anthropic error body: {answer.text}"
    if error.get("type") != want["error"]["type"]:
        return f"the error has type {error.get('type')!r}, expected {want['error']['type']!r}"
    return None


def _shape_difference(shape: Mapping[str, Any], body: dict[str, Any]) -> str | None:
    for key, value in shape.items():
        want, got = value, body.get(key)
        if isinstance(want, list):  # one entry stands for all
            want, got = want[0], got[0] if isinstance(got, list) and got else None
        if found := compare.difference(want, got, ""):
            return f"{key} is {found}"
    return None


def _request_id_difference(body: dict[str, Any], answer: Answer) -> str | None:
    header, inside = answer.headers.get("request-id"), body.get("request_id")
    if header and inside == header:
        return None
    return f"the request-id header is {header!r}, in the body it is {inside!r}"


def _header_difference(
    want: Mapping[str, str], got: Mapping[str, str], upstream: Mapping[str, str]
) -> str | None:
    for name, value in want.items():
        wanted = upstream.get(name) if value == "<same>" else value
        if got.get(name.lower()) != wanted:
            return f"the header {name} is {got.get(name.lower())!r}, expected {wanted!r}"
    return None


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:  # aiohttp's own text repeats the address
        return os.strerror(error.errno)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
