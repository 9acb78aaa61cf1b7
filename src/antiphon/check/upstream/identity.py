"""Which server is it? Asks the routes that only one of them has, and tells what it says of itself.

Owns the asking, and what else is found on the way: models, windows, slots. The signs of each server are
`core.recognise`'s, the same by which a gateway recognises its upstreams.

    await probe_identity(asker, report)
    report.server, report.version, report.window   -> ("vllm", "0.33.0", 32768)
"""

from __future__ import annotations

from typing import Any, Final

from antiphon.check.grammar import is_count, table
from antiphon.check.upstream.asking import Asker, Reply
from antiphon.check.upstream.findings import Report
from antiphon.core.dialects.quirks import GENERIC
from antiphon.core.recognise import METRICS, ROUTES, Evidence, owners_of, recognise


class Unreachable(Exception):  # noqa: N818 - not an error of the program
    """Nobody answers HTTP there, or it has no model to ask. The text says what to do."""


# `owned_by` of the simulator that comes with the gateway; it imitates no server in particular.
_SIMULATOR: Final = "antiphon"
_SHOWN = 6  # models by name in the table


async def probe_identity(asker: Asker, report: Report) -> None:
    """Raises `Unreachable` if no route answers at all, or if there is no model to ask and none was named."""
    models = await asker.get("/models")
    if models.status is None:
        raise Unreachable(f"nobody answers at {asker.base_url}: {models.said}")
    if models.status == 404 and asker.root_url == asker.base_url:
        # The base URL was given without its version: look whether the server has one.
        given, asker.base_url = asker.base_url, f"{asker.base_url}/v1"
        models = await asker.get("/models")
        if models.status == 200:
            report.url = asker.base_url
            report.say("server", "base URL", asker.base_url, f"{given}/models is not there")
        else:
            asker.base_url = given
    owners = owners_of(models.json)
    evidence = Evidence(
        base_url=asker.base_url,
        owners=owners,
        servers=(models.headers.get("server", ""),),
        answers=await _ask_routes(asker),
        metrics=await _ask_metrics(asker, report),
    )
    found = recognise(evidence)
    report.profile, report.version = found.kind, found.version or ""
    named = found.kind != GENERIC.name
    # A row for a range of versions is still the same server.
    report.server = found.kind.partition("-")[0] if named else "unknown"
    if not named and _SIMULATOR in owners:
        named, report.server = True, "the simulator"
    if found.slots is not None:
        report.say("server", "slots", str(found.slots), "at once, by its own word; use it for --slots")
    report.say(
        "server",
        "server",
        f"{report.server} {report.version}".strip(),
        "by its own routes and names" if named else "nothing gives it away",
    )
    window = table(table(evidence.answers.get("/props")).get("default_generation_settings")).get("n_ctx")
    if report.server == "llamacpp" and is_count(window):
        report.window = window  # of one slot
    _choose_model(report, _read_models(models, report), models)


async def _ask_routes(asker: Asker) -> dict[str, Any]:
    answers = {}
    for route in ROUTES:
        reply = await asker.get(route, at_root=True)
        if reply.ok:
            answers[route] = reply.json
    return answers


async def _ask_metrics(asker: Asker, report: Report) -> bytes:
    metrics = await asker.get("/metrics", at_root=True)
    found = metrics.ok and any(prefix in metrics.body for prefix in METRICS)
    report.say("server", "/metrics", "yes" if found else "no", "load and queue can be read" if found else "")
    return metrics.body if found else b""


def _read_models(reply: Reply, report: Report) -> list[dict[str, Any]]:
    """The entries of the list."""
    data = reply.members.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    models = [entry for entry in entries if isinstance(entry.get("id"), str)]
    if not models:
        report.say("models", "models", "none listed", f"/models: {reply.said}")
        return []
    names = [str(entry["id"]) for entry in models]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    report.say("models", "models", ", ".join(names[:_SHOWN]) + more)
    return models


def _choose_model(report: Report, listed: list[dict[str, Any]], reply: Reply) -> None:
    if not report.model:
        if not listed:
            hint = "give --api-key-env" if reply.status in (401, 403) else "name one with --model"
            raise Unreachable(f"{report.url} lists no models ({reply.said}): {hint}")
        report.model = str(listed[0]["id"])
    report.say("models", "asked", report.model)
    entry = next((entry for entry in listed if entry["id"] == report.model), {})
    meta = table(entry.get("meta"))
    for value in (entry.get("max_model_len"), entry.get("context_length"), entry.get("context_window")):
        if is_count(value):
            report.window = report.window or value
    trained = meta.get("n_ctx_train")
    report.say(
        "models",
        "context window",
        f"{report.window} tokens" if report.window else "not told",
        f"trained for {trained}" if is_count(trained) else "",
    )
