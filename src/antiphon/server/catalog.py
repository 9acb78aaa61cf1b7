"""Which models there are: what the upstreams list, in the shapes that both kinds of client read.

Owns the model list: asked of each upstream with a time limit, kept for a while, one question at a time.
`claude-` aliases are published because Claude Code lists only names with `claude` or `anthropic` in them
(protocol: Claude Code, gateway model discovery).

    catalog = Catalog(lambda: ask_upstream(session, base_url, None))
    await catalog.models()   -> [Model(id="qwen3-coder", window=131072), ...]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp
from msgspec import Struct

from antiphon.core.dialects.address import below, key_headers
from antiphon.core.dialects.quirk_facts import Auth
from antiphon.server.routing import ALIAS

KEPT = 30.0  # seconds
TIME_LIMIT = 2.0  # seconds; Claude Code gives the whole list three
# Under these names servers tell the window of a model.
_WINDOW_FIELDS = ("max_model_len", "context_length", "max_context_length", "context_window", "n_ctx")


class Model(Struct, frozen=True):
    """`window` in tokens, None where the upstream does not tell; `created` in Unix seconds."""

    id: str
    window: int | None = None
    created: int = 0


async def ask_upstream(
    session: aiohttp.ClientSession, base_url: str, api_key: str | None, auth: Auth = "bearer"
) -> list[Model] | None:
    """An OpenAI-style server's own list, None if it gives none now."""
    headers, url = key_headers(auth, api_key), below(base_url, "/models")
    try:
        async with session.get(
            url, headers=headers, timeout=aiohttp.ClientTimeout(total=TIME_LIMIT), allow_redirects=False
        ) as answer:
            if answer.status != 200:
                return None
            document = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError):
        return None
    items = document.get("data") if isinstance(document, dict) else None
    if not isinstance(items, list):
        return None
    return [_model(item) for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


def _model(item: dict[str, Any]) -> Model:
    meta = item.get("meta")
    places = [item, meta] if isinstance(meta, dict) else [item]
    window = next(
        (place[name] for place in places for name in _WINDOW_FIELDS if _is_count(place.get(name))), None
    )
    created = item.get("created")
    return Model(item["id"], window, created if isinstance(created, int) and created > 0 else 0)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Catalog:
    """The list as it was when it was last asked for; a failed question keeps the old answer."""

    def __init__(
        self, ask: Callable[[], Awaitable[list[Model] | None]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()
        self.known: dict[str, Model] = {}
        self.version = 0  # grows with every answer that changed something

    @property
    def told(self) -> bool:
        """The upstream has given a list."""
        return self._asked_at is not None

    @property
    def old(self) -> bool:
        """It is time to ask again, and nobody does."""
        return not self._lock.locked() and self._due

    @property
    def _due(self) -> bool:
        return self._asked_at is None or self._clock() - self._asked_at > KEPT

    def forget(self) -> None:
        """The server may be another one now: ask it anew. What was known holds until it answers."""
        self._asked_at = None
        self.version += 1

    async def models(self) -> list[Model]:
        """The models, asked anew if the list is old. Cancel safe: the next caller asks again."""
        async with self._lock:
            if self._due:
                answer = await self._ask()
                if answer is not None:
                    known = {model.id: model for model in answer}
                    self.version += self._asked_at is None or known != self.known
                    self.known = known
                    self._asked_at = self._clock()
        return list(self.known.values())


def with_aliases(models: list[Model]) -> list[Model]:
    """Each model, then `claude-` names for those that Claude Code would not list."""
    aliases = [
        Model(ALIAS + model.id, model.window, model.created)
        for model in models
        if not any(word in model.id.lower() for word in ("claude", "anthropic"))
    ]
    return [*models, *aliases]


def model_fields(model: Model) -> dict[str, Any]:
    """One model for Anthropic clients and OpenAI clients alike: the members do not collide."""
    created = datetime.fromtimestamp(model.created, UTC)
    name = model.id.removeprefix(ALIAS) if model.id.startswith(ALIAS) else model.id
    fields: dict[str, Any] = {
        "type": "model",
        "id": model.id,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "object": "model",
        "created": model.created,
        "owned_by": "antiphon",
    }
    if model.window is not None:
        fields["max_input_tokens"] = model.window
        fields["max_tokens"] = model.window
    return fields


def page(models: list[Model], *, limit: int, after_id: str | None, before_id: str | None) -> dict[str, Any]:
    """A page of the list (protocol: Messages API, GET /v1/models). An unknown cursor gives an empty page."""
    ids = [model.id for model in models]
    if after_id is not None:
        start = ids.index(after_id) + 1 if after_id in ids else len(ids)
        chosen = models[start : start + limit]
        more = start + limit < len(models)
    elif before_id is not None:
        end = ids.index(before_id) if before_id in ids else 0
        chosen = models[max(0, end - limit) : end]
        more = end - limit > 0
    else:
        chosen = models[:limit]
        more = limit < len(models)
    return {
        "object": "list",
        "data": [model_fields(model) for model in chosen],
        "has_more": more,
        "first_id": chosen[0].id if chosen else None,
        "last_id": chosen[-1].id if chosen else None,
    }
