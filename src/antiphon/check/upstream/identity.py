"""Which server is it? Asks the routes that only one of them has, and weighs what it says of itself.

Owns the signs of each server. Finds models, windows and versions on the way.

    await probe_identity(asker, report)
    report.server, report.version, report.window   -> ("vllm", "0.33.0", 32768)
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from urllib.parse import urlsplit

from antiphon.check.grammar import is_count, table
from antiphon.check.upstream.asking import Asker, Reply
from antiphon.check.upstream.findings import Report
from antiphon.core.dialects import quirks


class Unreachable(Exception):  # noqa: N818 - not an error of the program
    """Nobody answers HTTP there, or it has no model to ask. The text says what to do."""


# What `owned_by` in the model list, the `server` header, a metric's prefix or the host name give away.
_OWNERS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "library": "ollama",
    "openai": "openai",
    "system": "openai",
    "openai-internal": "openai",
    "mistralai": "mistral",
    "antiphon": "the simulator",
}
_SERVER_HEADERS: Final = {"llama.cpp": "llamacpp"}
_METRICS: Final = {b"vllm:": "vllm", b"sglang:": "sglang", b"llamacpp:": "llamacpp"}
_HOSTS: Final = {"api.openai.com": "openai", "api.mistral.ai": "mistral"}
_SHOWN = 6  # models by name in the table


async def probe_identity(asker: Asker, report: Report) -> None:
    """Raises `Unreachable` if no route answers at all, or if there is no model to ask and none was named."""
    votes: Counter[str] = Counter()
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
    _read_headers(models, votes)
    host = urlsplit(asker.base_url).hostname or ""
    if host in _HOSTS:
        votes[_HOSTS[host]] += 3

    await _ask_versions(asker, report, votes)
    await _ask_metrics(asker, report, votes)
    listed = _read_models(models, report, votes)
    report.server = votes.most_common(1)[0][0] if votes else "unknown"
    report.profile = report.server if report.server in quirks.names() else "generic"
    report.say(
        "server",
        "server",
        f"{report.server} {report.version}".strip(),
        "by its own routes and names" if votes else "nothing gives it away",
    )
    _choose_model(report, listed, models)


def _read_headers(reply: Reply, votes: Counter[str]) -> None:
    name = reply.headers.get("server", "").lower()
    for sign, server in _SERVER_HEADERS.items():
        if name.startswith(sign):
            votes[server] += 2


async def _ask_versions(asker: Asker, report: Report, votes: Counter[str]) -> None:
    ollama = await asker.get("/api/version", at_root=True)
    if ollama.ok and isinstance(ollama.members.get("version"), str):
        votes["ollama"] += 3
        report.version = ollama.members["version"]
        return
    props = await asker.get("/props", at_root=True)
    if props.ok and ("default_generation_settings" in props.members or "total_slots" in props.members):
        votes["llamacpp"] += 3
        report.version = str(props.members.get("build_info") or "")
        window = table(props.members.get("default_generation_settings")).get("n_ctx")
        if is_count(window):
            report.window = window
        if is_count(props.members.get("total_slots")):
            report.say("server", "slots", str(props.members["total_slots"]), "/props; use it for --slots")
        return
    for path in ("/server_info", "/get_server_info"):
        info = await asker.get(path, at_root=True)
        if info.ok and ("max_running_requests" in info.members or "tp_size" in info.members):
            votes["sglang"] += 3
            report.version = str(info.members.get("version") or "")
            most = info.members.get("max_running_requests")
            if is_count(most):
                report.say("server", "slots", str(most), f"{path} max_running_requests; use it for --slots")
            return
    version = await asker.get("/version", at_root=True)
    if version.ok and isinstance(version.members.get("version"), str):
        # Others have this route too: a weak sign.
        votes["vllm"] += 1
        report.version = version.members["version"]


async def _ask_metrics(asker: Asker, report: Report, votes: Counter[str]) -> None:
    metrics = await asker.get("/metrics", at_root=True)
    found = [server for prefix, server in _METRICS.items() if metrics.ok and prefix in metrics.body]
    for server in found:
        votes[server] += 3
    report.say("server", "/metrics", "yes" if found else "no", "load and queue can be read" if found else "")


def _read_models(reply: Reply, report: Report, votes: Counter[str]) -> list[dict[str, Any]]:
    """The entries of the list. Their owners are weighed once."""
    data = reply.members.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    models = [entry for entry in entries if isinstance(entry.get("id"), str)]
    for owner in {str(entry.get("owned_by")).lower() for entry in models}:
        if owner in _OWNERS:
            votes[_OWNERS[owner]] += 2
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
