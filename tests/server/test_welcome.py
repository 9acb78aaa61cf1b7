"""The greeting: what is served, and lines that can be pasted."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console

from antiphon.config import ModelSettings, Settings, TargetSettings, UpstreamSettings
from antiphon.server.welcome import LISTED, welcome


def upstream(name: str, **more) -> UpstreamSettings:
    return UpstreamSettings(name=name, base_url="http://10.0.0.1/v1?sekret", api_key="sekret", **more)


def model(name: str, *places: str) -> ModelSettings:
    return ModelSettings(name=name, targets=tuple(TargetSettings(upstream=each) for each in places))


def said(settings: Settings, port: int = 8090, config: str | None = None) -> str:
    """As it is printed."""
    console = Console(width=200, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(welcome(settings, port, config))
    return captured.get()


def body(text: str) -> dict:
    """What the curl line sends."""
    return json.loads(re.search(r"-d '(.*)'", text)[1])


def test_the_embedded_models() -> None:
    text = said(Settings())
    assert "from its embedded upstreams" in text
    assert "http://127.0.0.1:8090/v1/messages" in text
    assert body(text)["messages"] == [{"role": "user", "content": "hi"}]


def test_one_upstream() -> None:
    text = said(Settings(upstreams=(upstream("gpu1", kind="vllm", slots=4),), workers=3))
    assert "from your upstream (4 slots, kind vllm, 3 workers)" in text
    assert "any model name passes through" in text
    assert body(text)["model"] == "MODEL"
    assert "sekret" not in text
    assert "10.0.0.1" not in text


def test_several_upstreams_and_models() -> None:
    models = (model("claude-*", "gpu1"), model("qwen3", "gpu1", "gpu2", "gpu1"))
    text = said(Settings(upstreams=(upstream("gpu1"), upstream("gpu2", slots=3)), models=models))
    assert "from 2 upstreams" in text
    assert re.search(r"^  gpu2 +3 slots, kind auto$", text, re.MULTILINE)
    assert re.search(r"^ +claude-\* +at gpu1$", text, re.MULTILINE)
    assert re.search(r"^ +qwen3 +at gpu1, gpu2$", text, re.MULTILINE)
    assert body(text)["model"] == "qwen3"
    assert "ANTHROPIC_MODEL=qwen3 " in text
    assert "MODEL stands" not in text


def test_only_globs_leave_the_name_to_the_reader() -> None:
    text = said(Settings(upstreams=(upstream("a"),), models=(model("*", "a"), model("x?", "a"))))
    assert body(text)["model"] == "MODEL"


@pytest.mark.parametrize(("count", "told"), [(LISTED, None), (LISTED + 2, "and 2 more")])
def test_a_long_list_is_cut(count, told) -> None:
    names = [f"up{number}" for number in range(count)]
    text = said(Settings(upstreams=tuple(upstream(name) for name in names)))
    assert sum(bool(re.search(rf"^  {name} ", text, re.MULTILINE)) for name in names) == LISTED
    assert ("more" in text) == (told is not None)
    assert told is None or told in text


def test_where_keys_are_needed_the_lines_have_a_place_for_one() -> None:
    text = said(Settings(keys_file="k"))
    assert "-H 'x-api-key: KEY'" in text
    assert 'api_key="KEY"' in text
    assert "ANTHROPIC_AUTH_TOKEN=KEY " in text
    assert "KEY" not in said(Settings())


def test_the_file_that_was_read_is_said() -> None:
    assert "settings from etc/[a].toml" in said(Settings(), config="etc/[a].toml")
    assert "settings from" not in said(Settings())


def test_an_address_with_colons_and_a_name_with_brackets() -> None:
    models = (model("[bold]m", "a"),)
    text = said(Settings(host="::1", upstreams=(upstream("a"),), models=models))
    assert "http://[::1]:8090/v1/messages" in text
    assert "[bold]m" in text
