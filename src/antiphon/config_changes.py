"""What is different between two trees of settings, and what of it needs a restart.

Owns that comparison; it applies nothing. No text holds a secret.

    found = changes(old, new)
    found.upstreams_added        # ("gpu2",)
    found.restart                # ("port: 8080 stays until a restart, then 8090",)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from antiphon.config import ServerSettings, Settings

NEEDS_RESTART: Final = ("host", "port", "workers", "coordination", "coordination_policy", "log_json")
"""What a running process keeps as it was: listeners, processes, the place where slots are shared."""

_UNSHOWN: Final = frozenset({"coordination", "admin_key"})


class Changes(Struct, frozen=True, kw_only=True):
    """Names of what is different. All but `restart` can be applied to a running gateway.

    Upstreams and models by their names, the first of those in the order of the new file; `models_order`:
    the same models in another order, which decides between globs. `limits`, `health`, `retries` and `server`
    name their members. `restart` has one text for each setting that needs a new process.
    """

    upstreams_added: tuple[str, ...] = ()
    upstreams_removed: tuple[str, ...] = ()
    upstreams_changed: tuple[str, ...] = ()
    models_added: tuple[str, ...] = ()
    models_removed: tuple[str, ...] = ()
    models_changed: tuple[str, ...] = ()
    models_order: bool = False
    limits: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    retries: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)

    @property
    def models(self) -> bool:
        """The table of models has to be made anew."""
        return bool(self.models_added or self.models_removed or self.models_changed or self.models_order)

    def told(self) -> dict[str, list[str] | bool]:
        """What is different, for a log line."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value if isinstance(value, bool) else list(value) for name, value in values.items() if value
        }


def changes(old: Settings, new: Settings) -> Changes:
    """What became different from `old` to `new`."""
    upstreams = {each.name: each for each in old.upstreams}, {each.name: each for each in new.upstreams}
    models = {each.name: each for each in old.models}, {each.name: each for each in new.models}
    kept = [[name for name in side if name in models[0] and name in models[1]] for side in models]
    server = [
        name
        for name in ServerSettings.__struct_fields__
        if name not in NEEDS_RESTART and getattr(old, name) != getattr(new, name)
    ]
    return Changes(
        upstreams_added=_missing(upstreams[1], upstreams[0]),
        upstreams_removed=_missing(upstreams[0], upstreams[1]),
        upstreams_changed=_other(*upstreams),
        models_added=_missing(models[1], models[0]),
        models_removed=_missing(models[0], models[1]),
        models_changed=_other(*models),
        models_order=kept[0] != kept[1],
        limits=_members(old.limits, new.limits),
        health=_members(old.health, new.health),
        retries=_members(old.retries, new.retries),
        server=tuple(server),
        restart=tuple(_restart(old, new)),
    )


def _restart(old: Settings, new: Settings) -> list[str]:
    texts = []
    for name in NEEDS_RESTART:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            then = "" if name in _UNSHOWN else f", then {after}"
            kept = "the old one" if name in _UNSHOWN else before
            texts.append(f"{name}: {kept} stays until a restart{then}")
    if bool(old.upstreams) != bool(new.upstreams):
        kept = "your own ones stay" if old.upstreams else "the embedded ones stay"
        texts.append(f"upstreams: {kept} until a restart")
    return texts


def _missing(these: Mapping[str, Struct], those: Mapping[str, Struct]) -> tuple[str, ...]:
    return tuple(name for name in these if name not in those)


def _other(old: Mapping[str, Struct], new: Mapping[str, Struct]) -> tuple[str, ...]:
    return tuple(name for name in new if name in old and new[name] != old[name])


def _members(old: Struct, new: Struct) -> tuple[str, ...]:
    return tuple(name for name in new.__struct_fields__ if getattr(old, name) != getattr(new, name))


def taken_over(now: Settings, wanted: Settings) -> Settings:
    """What of `wanted` a process that runs with `now` can take over: all but what needs a restart."""
    kept = {name: getattr(now, name) for name in NEEDS_RESTART}
    if bool(now.upstreams) != bool(wanted.upstreams):  # the embedded ones do not come or go
        kept |= {"upstreams": now.upstreams, "models": now.models}
    return structs.replace(wanted, **kept)
