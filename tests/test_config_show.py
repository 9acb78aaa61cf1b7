"""The settings in force: every value with its origin, no secret, and a text that says the same again."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from antiphon.config import Settings
from antiphon.config_file import Flag, load
from antiphon.config_show import effective
from config_texts import MODEL, UPSTREAM, loaded

EXAMPLE = Path(__file__).parent.parent / "examples" / "antiphon.toml"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_value_says_where_it_is_from() -> None:
    text = f"[server]\nport = 1\nstrict = true\n{UPSTREAM}slots = 3\n"
    shown = effective(
        loaded(text, {"ANTIPHON_STRICT": "false"}, {("server", "log_json"): Flag(True, "--log-json")})
    ).split("\n")
    assert shown[0] == "# The settings in force, from a.toml."
    assert "port = 1 # line 2" in shown
    assert "strict = false # ANTIPHON_STRICT" in shown
    assert "log_json = true # --log-json" in shown
    assert "workers = 1 # default" in shown
    assert "slots = 3 # line 7" in shown
    assert 'kind = "auto" # default' in shown
    assert "gap = 180.0 # default" in shown


def test_what_is_shown_says_the_same_when_it_is_read() -> None:
    first = load(EXAMPLE, {"HOSTED_API_KEY": "***"})
    assert loaded(effective(first)).settings == first.settings
    assert loaded(effective(load(None, {}))).settings == Settings()


def test_no_secret_is_shown() -> None:
    Path("k").write_text("sekret")
    text = f"""
[server]
admin_key = "sekret-0123456789"
coordination = "redis://user:${{K}}@host/0"
{UPSTREAM}
api_key = "${{K}}"
quirks = {{ members = {{ token = "${{K}}", plain = "p" }} }}
{UPSTREAM.replace("gpu1", "gpu2").replace("/v1", "/v1?version=2&key=sekret")}
api_key_file = "k"
{MODEL}
[models.overrides]
system_prefix = "${{K}}"
chat_template_kwargs = {{ a = ["${{K}}", "b"] }}
"""
    shown = effective(loaded(text, {"K": "sekret"}))
    assert "sekret" not in shown
    tables = tomllib.loads(shown)
    assert tables["server"]["admin_key"] == "***"
    assert tables["server"]["coordination"] == "redis://***"
    assert tables["upstreams"][0]["api_key"] == "***"
    assert tables["upstreams"][0]["quirks"]["members"] == {"token": "***", "plain": "p"}
    assert tables["upstreams"][1]["api_key_file"] == "k"
    assert tables["upstreams"][1]["base_url"] == "http://127.0.0.1:8000/v1?***"
    assert "api_key" not in tables["upstreams"][1]
    assert tables["models"][0]["overrides"]["chat_template_kwargs"]["a"] == ["***", "b"]


def test_what_came_into_an_address_or_a_name_from_a_variable_is_shown() -> None:
    text = UPSTREAM.replace("8000", "${P}") + '[[models]]\nname = "m"\ntargets = [{ upstream = "gpu${N}" }]'
    tables = tomllib.loads(effective(loaded(text, {"P": "81", "N": "1"})))
    assert tables["upstreams"][0]["base_url"] == "http://127.0.0.1:81/v1"
    assert tables["models"][0]["targets"][0]["upstream"] == "gpu1"


def test_a_folder_where_slots_are_shared_is_shown() -> None:
    assert 'coordination = "local:/run/x"' in effective(
        loaded(f'[server]\ncoordination = "local:/run/x"\n{UPSTREAM}')
    )
