"""`antiphon init`, `config check` and `config show`: what they print, write and exit with."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon import config_probe
from antiphon.cli import app
from antiphon.config_file import load
from config_texts import MODEL, UPSTREAM
from inference_servers import models, serving


def antiphon(*arguments: str, **options):
    return CliRunner().invoke(app, list(arguments), **options)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder without a file of settings, on a machine where nothing runs on the usual ports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_probe, "PORTS", ())
    monkeypatch.delenv("ANTIPHON_CONFIG", raising=False)
    return tmp_path


# --- check ----------------------------------------------------------------------------------------


def test_a_file_that_is_right_is_summed_up() -> None:
    Path("a.toml").write_text(f'[server]\nport = 8090\n{UPSTREAM}kind = "vllm"\nslots = 4\n{MODEL}')
    result = antiphon("config", "check", "a.toml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "a.toml: this can be served on 127.0.0.1:8090\n"
        "  upstreams: gpu1 (vllm, 4 slots)\n"
        "  models: m\n"
        "  keys: none\n"
    )


def test_a_file_that_is_wrong_is_told_in_full() -> None:
    Path("a.toml").write_text(f'[server]\nport = -1\nprot = 1\n{UPSTREAM}api_key = "sekret"\n')
    result = antiphon("config", "check", "a.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.split("\n") == [
        (
            "antiphon: warning: a.toml:7: upstreams[0].api_key: is written in the file; take it from the "
            'environment (api_key = "${NAME}"), or a file (api_key_file = ...)'
        ),
        "antiphon: a.toml:2: server.port: must be a whole number from 0 to 65535; it is -1",
        "antiphon: a.toml:3: server.prot: there is no such setting; did you mean port?",
        "",
    ]


def test_a_file_with_a_warning_is_right() -> None:
    Path("a.toml").write_text(f'{UPSTREAM}api_key = "sekret"\n')
    result = antiphon("config", "check", "a.toml")
    assert result.exit_code == 0
    assert "warning: a.toml:4: upstreams[0].api_key" in result.stderr
    assert "sekret" not in result.output


def test_the_file_is_the_one_that_serve_would_read() -> None:
    result = antiphon("config", "check")
    assert result.exit_code == 2
    assert "there is no antiphon.toml here" in result.stderr
    Path("antiphon.toml").write_text("")
    assert "antiphon.toml: this can be served" in antiphon("config", "check").stdout
    Path("b.toml").write_text("")
    result = antiphon("config", "check", env={"ANTIPHON_CONFIG": "b.toml"})
    assert "b.toml: this can be served" in result.stdout
    result = antiphon("config", "check", "missing.toml")
    assert result.stderr == "antiphon: missing.toml: cannot be read: No such file or directory\n"


def test_the_environment_counts_too() -> None:
    Path("a.toml").write_text("")
    result = antiphon("config", "check", "a.toml", env={"ANTIPHON_GAP": "never"})
    assert result.exit_code == 2
    assert "ANTIPHON_GAP: must be a number greater than 0" in result.stderr


def test_a_misspelt_variable_is_told_once_and_the_file_is_right() -> None:
    Path("a.toml").write_text("")
    result = antiphon("config", "check", "a.toml", env={"ANTIPHON_QUEUE_LENGHT": "sekret"})
    assert result.exit_code == 0
    assert result.stderr == (
        "antiphon: warning: ANTIPHON_QUEUE_LENGHT: no setting has this name; did you mean "
        "ANTIPHON_QUEUE_LENGTH?\n"
    )
    assert "sekret" not in result.output


def test_a_glob_that_is_never_reached_is_told_and_the_file_is_right() -> None:
    models_ = "".join(f'[[models]]\nname = "{name}"\nupstream = "gpu1"\n' for name in ("c*", "claude-*"))
    Path("a.toml").write_text(UPSTREAM + models_)
    result = antiphon("config", "check", "a.toml")
    assert result.exit_code == 0
    assert (
        "antiphon: warning: a.toml:8: models[1].name: claude-* is never reached: models[0] (c*)"
        in result.stderr
    )


OPEN = '[server]\nhost = "0.0.0.0"\nkeys_file = "keys.json"\n'


def test_an_open_address_needs_a_key_that_is_good() -> None:
    Path("a.toml").write_text(OPEN)
    result = antiphon("config", "check", "a.toml")
    assert result.exit_code == 2
    assert "keys.json" in result.stderr
    assert "antiphon key new NAME" in result.stderr
    made = antiphon("key", "new", "alice", "--file", "keys.json")
    assert made.exit_code == 0
    assert antiphon("config", "check", "a.toml").exit_code == 0
    assert antiphon("key", "revoke", "alice", "--file", "keys.json").exit_code == 0
    result = antiphon("config", "check", "a.toml")
    assert result.exit_code == 2
    assert "has no key that is good now" in result.stderr
    Path("a.toml").write_text(OPEN + "allow_anonymous = true\n")
    assert antiphon("config", "check", "a.toml").exit_code == 0
    Path("a.toml").write_text('[server]\nkeys_file = "keys.json"\n')
    assert antiphon("config", "check", "a.toml").exit_code == 0


# --- show -----------------------------------------------------------------------------------------


def test_what_is_in_force_is_shown_without_secrets() -> None:
    Path("a.toml").write_text(f'[server]\nport = 1\n{UPSTREAM}api_key = "${{K}}"\n')
    result = antiphon("config", "show", "a.toml", env={"K": "sekret", "ANTIPHON_PDF": "refuse"})
    assert (result.exit_code, result.stderr) == (0, "")
    assert "sekret" not in result.output
    assert 'pdf = "refuse" # ANTIPHON_PDF\n' in result.stdout
    tables = tomllib.loads(result.stdout)
    assert tables["server"]["port"] == 1
    assert tables["upstreams"][0]["api_key"] == "***"


def test_without_a_file_the_defaults_are_shown() -> None:
    result = antiphon("config", "show")
    assert result.exit_code == 0
    assert tomllib.loads(result.stdout)["limits"]["gap"] == 180


# --- init -----------------------------------------------------------------------------------------


def test_what_is_found_is_written(monkeypatch) -> None:
    vllm = models("qwen3") | {"/version": {"version": "0.30.1"}}
    vllm["/v1/models"]["data"][0]["owned_by"] = "vllm"
    with serving(vllm) as one, serving(models("phi")) as other:
        monkeypatch.setattr(config_probe, "PORTS", ((one, "vllm"), (other, "lmstudio")))
        monkeypatch.setattr(config_probe.find_servers, "__kwdefaults__", {"time_limit": 30})
        result = antiphon("init", "--yes")
    assert result.exit_code == 0, result.output
    assert f"found vLLM 0.30.1 at http://127.0.0.1:{one}/v1\n" in result.stdout
    settings = load(Path("antiphon.toml"), {}).settings
    assert [(each.name, each.kind) for each in settings.upstreams] == [
        ("vllm", "auto"),
        ("lmstudio", "lmstudio"),
    ]
    assert {each.name: each.targets[0].upstream for each in settings.models} == {
        "qwen3": "vllm",
        "phi": "lmstudio",
        "*": "vllm",
    }
    assert antiphon("config", "check").exit_code == 0


def test_nothing_found_serves_the_embedded_models() -> None:
    result = antiphon("init", "--yes", "--output", "b.toml")
    assert result.exit_code == 0
    assert "the embedded models are served" in result.stdout
    assert antiphon("config", "check", "b.toml").exit_code == 0


def test_a_file_is_not_replaced_without_a_word() -> None:
    Path("antiphon.toml").write_text("mine")
    result = antiphon("init", "--yes")
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert Path("antiphon.toml").read_text() == "mine"
    assert antiphon("init", "--yes", "--force").exit_code == 0
    assert "[server]" in Path("antiphon.toml").read_text()


def test_a_file_that_came_into_being_meanwhile_is_not_replaced_either(monkeypatch) -> None:
    async def find_servers(look, ports) -> list:
        Path("antiphon.toml").write_text("mine")
        return []

    monkeypatch.setattr(config_probe, "find_servers", find_servers)
    result = antiphon("init", "--yes")
    assert result.exit_code == 2
    assert "antiphon.toml cannot be written: File exists" in result.stderr
    assert Path("antiphon.toml").read_text() == "mine"


def test_a_place_that_cannot_be_written() -> None:
    result = antiphon("init", "--yes", "--output", "no/such/folder.toml")
    assert result.exit_code == 2
    assert "no/such/folder.toml cannot be written: No such file or directory" in result.stderr


def test_it_asks_about_what_is_found_and_what_is_elsewhere(monkeypatch) -> None:
    ours = models("d", "e", "f") | {"/props": {"total_slots": 6, "build_info": "b7500"}}
    with serving(models("a")) as one, serving(models("b", "c")) as other, serving(ours) as named:
        monkeypatch.setattr(config_probe.find_server, "__kwdefaults__", {"time_limit": 30})
        monkeypatch.setattr(config_probe, "PORTS", ((one, "vllm"), (other, "ollama")))
        monkeypatch.setattr(config_probe.find_servers, "__kwdefaults__", {"time_limit": 30})
        answers = [
            "n",  # not the first one
            "",  # the second one
            "ftp://h",  # no base URL
            "https://api.example.com/v1",
            "bad name",
            "https://api.example.com/v1",
            "hosted",
            "sk-the-key-itself",
            "https://api.groq.com/openai/v1",
            "hosted",
            "HOSTED_KEY",
            f"http://127.0.0.1:{one}/v1",
            "",  # the name that is proposed
            "",  # no key
            f"http://127.0.0.1:{named}/v1",
            "named",
            "NAMED_KEY",
            "",  # no more
        ]
        result = antiphon("init", input="\n".join([*answers, ""]), env={"NAMED_KEY": "sekret"})
    assert result.exit_code == 0, result.output
    assert "  It is a server of no known kind with 1 model.\n" in result.stdout
    assert "  It is llama.cpp b7500 with 3 models and 6 slots.\n" in result.stdout
    assert "sekret" not in result.output
    assert "Use vLLM at" in result.stdout
    assert f"Use Ollama at http://127.0.0.1:{other}/v1 (2 models)?" in result.stdout
    assert "must begin with http:// or https://" in result.stderr
    assert "the key itself does not belong here" in result.stderr
    assert "HOSTED_KEY is not set" in result.stderr
    text = Path("antiphon.toml").read_text()
    assert "sk-the-key-itself" not in text
    settings = load(Path("antiphon.toml"), {"HOSTED_KEY": "k", "NAMED_KEY": "x"}).settings
    assert [(each.name, each.base_url) for each in settings.upstreams] == [
        ("ollama", f"http://127.0.0.1:{other}/v1"),
        ("hosted", "https://api.groq.com/openai/v1"),
        ("upstream", f"http://127.0.0.1:{one}/v1"),
        ("named", f"http://127.0.0.1:{named}/v1"),
    ]
    assert settings.upstreams[1].api_key == "k"
    assert [each.slots for each in settings.upstreams] == ["auto", "auto", "auto", 6]
    assert [target.upstream for each in settings.models if each.name == "d" for target in each.targets] == [
        "named"
    ]


def test_a_server_that_is_not_there_yet_is_written_all_the_same() -> None:
    with serving({}) as port:
        url = f"http://127.0.0.1:{port}/v1"
        result = antiphon("init", input=f"{url}\n\n\n\n")
    assert result.exit_code == 0, result.output
    assert "No server lists its models there now" in result.stdout
    (one,) = load(Path("antiphon.toml"), {}).settings.upstreams
    assert (one.name, one.base_url, one.kind, one.slots) == ("upstream", url, "auto", "auto")


def test_the_slots_that_a_server_tells_are_written(monkeypatch) -> None:
    told = models("m") | {"/props": {"total_slots": 4, "build_info": "b7500"}}
    with serving(told) as port:
        monkeypatch.setattr(config_probe, "PORTS", ((port, "vllm"),))
        monkeypatch.setattr(config_probe.find_servers, "__kwdefaults__", {"time_limit": 30})
        assert antiphon("init", "--yes").exit_code == 0
    assert [each.slots for each in load(Path("antiphon.toml"), {}).settings.upstreams] == [4]


def test_leaving_the_questions_writes_nothing() -> None:
    assert antiphon("init", input="").exit_code == 1
    assert not Path("antiphon.toml").exists()
