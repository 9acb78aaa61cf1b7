"""`antiphon serve`: which settings its flags make, and what it refuses before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon import cli_serve
from antiphon.cli import app
from antiphon.config_file import Loaded
from config_texts import MODEL, UPSTREAM

URL = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTIPHON_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def served(monkeypatch) -> list[Loaded]:
    """What would have been served."""
    taken: list[Loaded] = []
    monkeypatch.setattr(cli_serve, "_run", taken.append)
    return taken


def serve(*arguments: str, **options):
    return CliRunner().invoke(app, ["serve", *arguments], **options)


def test_without_anything_the_embedded_models_are_served(served) -> None:
    assert serve().exit_code == 0
    assert (served[0].settings.upstreams, served[0].settings.port) == ((), 8080)


def test_one_upstream_by_flags(served) -> None:
    arguments = ["--upstream", URL, "--api-key-env", "K", "--slots", "3", "--kind", "vllm"]
    assert serve(*arguments, env={"K": "sekret"}).exit_code == 0
    (one,) = served[0].settings.upstreams
    assert (one.name, one.base_url, one.api_key, one.slots, one.kind) == (
        "upstream",
        URL,
        "sekret",
        3,
        "vllm",
    )


def test_an_upstream_is_recognised_unless_its_kind_is_told(served) -> None:
    assert serve("--upstream", URL).exit_code == 0
    assert serve("--upstream", URL, "--slots", "auto", "--profile", "sglang").exit_code == 0
    assert [(each.settings.upstreams[0].slots, each.settings.upstreams[0].kind) for each in served] == [
        ("auto", "auto"),
        ("auto", "sglang"),
    ]


FLAGS = [
    (["--port", "1"], "port", 1),
    (["--host", "localhost"], "host", "localhost"),
    (["--host", "0.0.0.0", "--allow-anonymous"], "host", "0.0.0.0"),
    (["--allow-anonymous"], "allow_anonymous", True),
    (["--no-allow-anonymous"], "allow_anonymous", False),
    (["--strict"], "strict", True),
    (["--no-strict"], "strict", False),
    (["--pdf", "images"], "pdf", "images"),
    (["--workers", "2"], "workers", 2),
    (["--coordination-policy", "closed"], "coordination_policy", "closed"),
    (["--log-level", "WARNING"], "log_level", "warning"),
    (["--log-json"], "log_json", True),
]


@pytest.mark.parametrize(("arguments", "name", "value"), FLAGS)
def test_each_flag_sets_its_setting_over_the_environment_and_the_file(served, arguments, name, value) -> None:
    Path("antiphon.toml").write_text("[server]\nport = 2\nstrict = true\nallow_anonymous = true\n")
    assert serve(*arguments, env={"ANTIPHON_PDF": "refuse"}).exit_code == 0
    assert getattr(served[0].settings, name) == value


def test_a_file_by_its_name_by_its_variable_or_by_its_usual_place(served) -> None:
    for number, name in enumerate(("a.toml", "b.toml", "antiphon.toml"), 1):
        Path(name).write_text(f"[server]\nport = {number}\n")
    assert serve("--config", "a.toml", env={"ANTIPHON_CONFIG": "b.toml"}).exit_code == 0
    assert serve(env={"ANTIPHON_CONFIG": "b.toml"}).exit_code == 0
    assert serve().exit_code == 0
    assert [each.settings.port for each in served] == [1, 2, 3]
    assert [str(each.origins.file) for each in served] == ["a.toml", "b.toml", "antiphon.toml"]


def test_an_upstream_on_the_command_line_stands_over_a_file_that_nobody_named(served) -> None:
    Path("antiphon.toml").write_text(f"[server]\nport = 2\n{UPSTREAM}{MODEL}")
    result = serve("--upstream", URL)
    assert result.exit_code == 0
    assert "antiphon.toml is not read: --upstream is given" in result.stderr
    assert served[0].settings.port == 8080
    assert [each.name for each in served[0].settings.upstreams] == ["upstream"]


def test_a_misspelt_variable_is_told_once(served) -> None:
    result = serve(env={"ANTIPHON_PROT": "sekret"})
    assert result.exit_code == 0
    said = "antiphon: warning: ANTIPHON_PROT: no setting has this name; did you mean ANTIPHON_PORT?\n"
    assert result.stderr == said


def test_a_variable_that_a_flag_names_is_not_told(served) -> None:
    result = serve("--upstream", URL, "--api-key-env", "ANTIPHON_GPU", env={"ANTIPHON_GPU": "k"})
    assert (result.exit_code, result.stderr) == (0, "")


REFUSED = [
    (["--port", "65536"], "--port: must be a whole number from 0 to 65535"),
    (["--workers", "0"], "--workers: must be a whole number from 1 to 1024"),
    (["--config", "a.toml", "--upstream", URL], "--upstream: contradicts --config"),
    (["--slots", "3"], "--slots: needs --upstream"),
    (["--kind", "vllm"], "--kind: needs --upstream"),
    (["--api-key-env", "K"], "--api-key-env: needs --upstream"),
    (["--upstream", URL, "--api-key-env", "NOT_SET"], "--api-key-env NOT_SET: this environment variable is"),
    (["--upstream", URL, "--slots", "0"], "--slots: must be a whole number from 1 to 1000000 or auto"),
    (["--upstream", URL, "--slots", "x"], "--slots: must be a whole number from 1 to 1000000 or auto"),
    (["--upstream", URL, "--kind", "vlm"], "--kind: there is no kind vlm; did you mean vllm?"),
    (["--upstream", "127.0.0.1:8000"], "--upstream: must begin with http:// or https://"),
    (["--upstream", "http://u:sekret@h/v1"], "--upstream: must not contain a user name or password"),
    (["--host", "0.0.0.0"], "--host: only loopback addresses are served without keys"),
    (["--host", "0.0.0.0", "--keys-file", "missing.json"], "keys file missing.json: "),
    (["--pdf", "image"], "--pdf: must be text, images or refuse; did you mean images?"),
    (["--log-level", "loud"], "--log-level: must be debug, info, warning or error"),
    (["--coordination", "redis://h"], "--coordination: there are no upstreams to share"),
    (["--upstream", URL, "--coordination", "http://:sekret@h"], "--coordination: must begin with redis://"),
    (["--config", "missing.toml"], "missing.toml: cannot be read: No such file or directory"),
    (["--config", "wrong.toml"], "wrong.toml:1: prot: there is no such setting"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_served_is_refused_in_plain_words(served, arguments, said) -> None:
    Path("a.toml").write_text("")
    Path("wrong.toml").write_text("prot = 1\n")
    result = serve(*arguments, env={"K": "sekret"})
    assert result.exit_code == 2
    assert result.stderr.startswith(f"antiphon: {said}"), result.stderr
    assert "sekret" not in result.output
    assert served == []


def test_warnings_are_said_and_do_not_hinder(served) -> None:
    Path("antiphon.toml").write_text(f'{UPSTREAM}api_key = "sekret"\n')
    result = serve()
    assert result.exit_code == 0
    assert "antiphon: warning: antiphon.toml:4: upstreams[0].api_key: is written in the file" in result.stderr
    assert "sekret" not in result.output
    assert len(served) == 1


def test_text_with_brackets_is_said_as_it_is(served) -> None:
    result = serve("--config", "[bold]x.toml")
    assert "[bold]x.toml: cannot be read" in result.stderr
