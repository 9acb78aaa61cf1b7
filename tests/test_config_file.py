"""Loading: what stands over what, where secrets may come from, what the settings come to."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.config import ConfigError, Coordination, Limits, Settings, TargetSettings
from antiphon.config_file import Flag, find, load
from antiphon.config_tables import File, environment_names, members
from antiphon.core.dialects import quirks
from antiphon.server.upstreams import quirks_of
from config_texts import MODEL, UPSTREAM, loaded, refused

EXAMPLE = Path(__file__).parent.parent / "examples" / "antiphon.toml"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder of its own; files are named as a user would name them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- What is read ---------------------------------------------------------------------------------


def test_an_empty_file_is_the_defaults() -> None:
    assert loaded("").settings == Settings()
    assert load(None, {}).settings == Settings()
    assert load(None, {}).files == ()


def test_the_short_form_of_a_model_is_one_target() -> None:
    short = loaded(UPSTREAM + MODEL + 'model = "x"').settings.models[0]
    long = loaded(UPSTREAM + '[[models]]\nname = "m"\ntargets = [{ upstream = "gpu1", model = "x" }]')
    assert short == long.settings.models[0]
    assert short.targets == (TargetSettings(upstream="gpu1", model="x", weight=1.0),)


def test_quirks_become_the_facts_of_the_row() -> None:
    text = UPSTREAM + 'kind = "llamacpp"\n[upstreams.quirks]\nmax_stop = 4\nreasoning_fields_out = ["a"]\n'
    upstream = loaded(text + "prefill = { add = true, n = 1 }").settings.upstreams[0]
    row = quirks_of(upstream)
    assert isinstance(row, quirks.Quirks)
    assert row.prefill == (("add", True), ("n", 1))
    assert (row.max_stop, row.reasoning_fields_out) == (4, ("a",))
    assert row.tokenizer == quirks.by_name("llamacpp").tokenizer


def test_coordination_gets_its_policy() -> None:
    text = '[server]\ncoordination = "redis://h:1/0"\ncoordination_policy = "closed"\n' + UPSTREAM
    settings = loaded(text).settings
    assert settings.coordination == Coordination(where="redis://h:1/0", policy="closed")
    assert settings.coordination_policy == "closed"


@pytest.mark.parametrize("allowed", ["allow_anonymous = true", 'keys_file = "k"'])
def test_an_open_address_needs_keys_or_a_word(allowed) -> None:
    assert loaded(f'[server]\nhost = "0.0.0.0"\n{allowed}').settings.host == "0.0.0.0"


def test_paths_are_relative_to_the_file(here, monkeypatch) -> None:
    folder = here / "etc"
    folder.mkdir()
    (folder / "key").write_text("the-key\n")
    (folder / "a.toml").write_text(
        '[server]\nkeys_file = "keys.json"\ncoordination = "local:slots"\n'
        + UPSTREAM
        + 'api_key_file = "key"'
    )
    found = load(folder / "a.toml", {})
    assert found.settings.keys_file == str(folder / "keys.json")
    assert found.settings.coordination.where == f"local:{folder / 'slots'}"
    assert found.settings.upstreams[0].api_key == "the-key"
    assert found.files == (folder / "a.toml", folder / "key", folder / "keys.json")
    # From elsewhere they are relative to where the command is run, as everywhere.
    assert load(folder / "a.toml", {"ANTIPHON_KEYS_FILE": "k"}).settings.keys_file == "k"
    assert loaded(f'[server]\nkeys_file = "{here}/k"').settings.keys_file == f"{here}/k"
    monkeypatch.setenv("HOME", str(here))
    assert loaded('[server]\nkeys_file = "~/k"').settings.keys_file == f"{here}/k"


@pytest.mark.parametrize("table", ["server", "limits", "health", "retries"])
def test_every_setting_with_a_default_can_be_written_down(table) -> None:
    kind = next(each for each in members(File) if each.name == table).table
    defaults = {each.name: each.default for each in members(kind) if each.default is not None}
    assert loaded(tomlkit.dumps({table: defaults})).settings == Settings()


def test_every_setting_of_the_tree_loads() -> None:
    values = {
        "admin_key": "0123456789abcdef",
        "coordination": "redis://h",
        "api_key": "k",
        "think_tags": "open",
        "quirks": {"max_stop": 1},
        "window": 1,
        "overrides": {
            "temperature": 1,
            "top_p": 1,
            "thinking": True,
            "effort": "max",
            "max_tokens": 1,
            "chat_template_kwargs": {"a": [1]},
            "system_prefix": "x",
        },
        "fallbacks": {"overflow": "n", "overloaded": "n", "failed": "n"},
        "upstream": "a",
        "model": "x",
        "targets": [{"upstream": "a", "model": "x", "weight": 2}],
    }
    files = {"keys_file", "admin_key_file", "api_key_file"}
    Path("f").write_text("0123456789abcdef")
    tables = {each.name: each.table or each.tables for each in members(File)}
    for name, kind in tables.items():
        for member in members(kind):
            value = "f" if member.name in files else values.get(member.name, member.default)
            if member.name == "name":
                value = "b"
            if member.name == "base_url":
                value = "http://h/v1"
            document: dict[str, Any] = {
                "upstreams": [{"name": "a", "base_url": "http://h/v1"}],
                "models": [{"name": "m", "upstream": "a"}, {"name": "n", "upstream": "a"}],
            }
            if name in {"upstreams", "models"}:
                one = document[name][0]
                if member.name == "targets":
                    del one["upstream"]
                one[member.name] = value
                if name == "upstreams":
                    del document["models"]
            else:
                document[name] = {member.name: value}
            assert loaded(tomlkit.dumps(document)), (name, member.name)


def test_the_example_loads_and_has_every_setting() -> None:
    found = load(EXAMPLE, {"HOSTED_API_KEY": "k"})
    assert found.warnings == []
    assert found.settings.upstreams[3].api_key == "k"
    text = EXAMPLE.read_text()
    for table in members(File):
        section = text[text.index(f"[[{table.name}]]" if table.tables else f"[{table.name}]") :]
        for member in members(table.table or table.tables):
            written = rf"^(?:# )?{member.name} = |^\[models\.{member.name}\]"
            assert re.search(written, section, re.MULTILINE), (table.name, member.name)


def test_what_the_example_has_commented_out_loads_too(here) -> None:
    """Each of them alone; what it says is a default is the default."""
    lines = EXAMPLE.read_text().split("\n")
    environ = {"HOSTED_API_KEY": "k", "ADMIN_KEY": "0123456789abcdef", "REDIS_PASSWORD": "p"}
    plain = load(EXAMPLE, environ).settings
    tried = 0
    for number, line in enumerate(lines):
        if not (found := re.match(r"# (\w+) = ", line)) or found[1].endswith("key_file"):
            continue
        tried += 1
        settings = loaded("\n".join([*lines[:number], line[2:], *lines[number + 1 :]]), environ).settings
        if found[1] not in {"keys_file", "admin_key", "coordination", "think_tags"}:
            assert settings == plain, line
    assert tried > 40


# --- Variables and secrets ------------------------------------------------------------------------


def test_variables_are_put_into_texts_everywhere() -> None:
    text = (
        '[server]\nhost = "127.0.0.${LAST}"\n' + UPSTREAM.replace("8000", "${PORT}") + 'slots = "${SLOTS}"\n'
        'api_key = "Bearer-${KEY}$$"\n'
        '[[models]]\nname = "m"\ntargets = [{ upstream = "gpu${LAST}", model = "$x" }]\n'
        '[models.overrides.chat_template_kwargs]\na = ["${KEY}"]'
    )
    settings = loaded(text, {"LAST": "1", "PORT": "81", "SLOTS": "3", "KEY": "${LAST}"}).settings
    upstream, model = settings.upstreams[0], settings.models[0]
    assert (settings.host, upstream.base_url, upstream.slots) == ("127.0.0.1", "http://127.0.0.1:81/v1", 3)
    assert upstream.api_key == "Bearer-${LAST}$"  # what a variable holds is not looked through again
    assert model.targets == (TargetSettings(upstream="gpu1", model="$x"),)
    assert model.overrides.chat_template_kwargs == {"a": ["${LAST}"]}


def test_a_key_in_the_file_works_with_a_warning_that_does_not_show_it() -> None:
    text = (
        '[server]\nadmin_key = "0123456789-sekret"\ncoordination = "redis://:sekret@h"\n'
        + UPSTREAM
        + 'api_key = "sekret"'
    )
    found = loaded(text)
    assert found.settings.upstreams[0].api_key == "sekret"
    assert found.warnings == [
        (
            "a.toml:2: server.admin_key: is written in the file; take it from the environment "
            '(admin_key = "${NAME}"), or a file (admin_key_file = ...)'
        ),
        (
            "a.toml:3: server.coordination: is written in the file; take it from the environment "
            '(coordination = "${NAME}")'
        ),
        (
            "a.toml:7: upstreams[0].api_key: is written in the file; take it from the environment "
            '(api_key = "${NAME}"), or a file (api_key_file = ...)'
        ),
    ]


def test_keys_from_elsewhere_and_a_coordinator_without_a_password_earn_no_warning() -> None:
    Path("k").write_text("sekret")
    text = (
        '[server]\nadmin_key = "${K}"\ncoordination = "redis://user@h"\n'
        + UPSTREAM
        + 'api_key_file = "k"\n'
        + UPSTREAM.replace("gpu1", "gpu2")
        + 'api_key = "a${K}"'
    )
    assert loaded(text, {"K": "0123456789abcdef"}).warnings == []


SECRET_MISTAKES = [
    '[server]\nadmin_key = "{}"',  # too short
    '[server]\ncoordination = "http://{}"',
    '[server]\ncoordination = "redis://:{}@h"',
    '[[upstreams]]\nname = "a"\nbase_url = "http://u:{}@h"',
    '[[upstreams]]\nname = "a"\nbase_url = "http://h?key={}#"',
    '[[upstreams]]\nname = "a"\nbase_url = "http://h"\napi_key = "{} "',
    '[[upstreams]]\nname = "a"\nbase_url = "http://h"\napi_key = ["{}"]',
    '[[upstreams]]\nname = "a"\nbase_url = "http://h"\napi_kee = "{}"',
    '[[upstreams]]\nname = "a"\nbase_url = "http://h"\napi_key = "{}"\napi_key_file = "k"',
    'api_key = "{}"',
    'api_key = "{}',
    "api_key = {}",
]


@pytest.mark.parametrize("text", SECRET_MISTAKES)
@pytest.mark.parametrize("way", ["literal", "variable"])
def test_no_message_shows_a_secret(text, way) -> None:
    Path("k").write_text("sekret")
    with pytest.raises(ConfigError) as error:
        loaded(text.replace("{}", "sekret" if way == "literal" else "${K}"), {"K": "sekret"})
    said = [str(error.value), repr(error.value), *error.value.errors, *error.value.warnings]
    assert not [line for line in said if "sekret" in line]


def test_a_wrong_value_that_came_from_a_variable_is_not_shown() -> None:
    assert refused('[limits]\ngap = "${G}"', {"G": "sekret"}) == [
        "a.toml:2: limits.gap: must be a number greater than 0"
    ]
    assert refused("", {"ANTIPHON_GAP": "sekret"}) == ["ANTIPHON_GAP: must be a number greater than 0"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "4: upstreams[0].api_key_file: k is empty"),
        (b" \n", "4: upstreams[0].api_key_file: k is empty"),
        (b"\xff", "4: upstreams[0].api_key_file: k: is not UTF-8"),
        (b"a\nb", "4: upstreams[0].api_key_file: must be printable ASCII without white space at its ends"),
    ],
)
def test_a_file_that_holds_no_key(content, said) -> None:
    Path("k").write_bytes(content)
    first, *others = refused(UPSTREAM + 'api_key_file = "k"')
    assert first.startswith(f"a.toml:{said}")
    assert others == []


def test_a_refused_load_names_the_files_that_may_mend_it() -> None:
    with pytest.raises(ConfigError) as error:
        loaded(UPSTREAM + 'api_key_file = "k"')
    assert error.value.files == (Path("a.toml"), Path("k"))


# --- Precedence -----------------------------------------------------------------------------------


def test_a_flag_stands_over_the_environment_that_over_the_file_that_over_the_default() -> None:
    path = ("server", "port")
    assert loaded("").settings.port == 8080
    assert loaded("[server]\nport = 1").settings.port == 1
    found = loaded("[server]\nport = 1", {"ANTIPHON_PORT": "2"})
    assert (found.settings.port, found.origins.told(path)) == (2, "ANTIPHON_PORT")
    found = loaded("[server]\nport = 1", {"ANTIPHON_PORT": "2"}, {path: Flag(3, "--port")})
    assert (found.settings.port, found.origins.told(path)) == (3, "--port")
    assert loaded("[server]\nport = 1").origins.told(path) == "line 2"
    assert loaded("").origins.told(path) == "default"


def test_what_stands_over_a_mistake_mends_it() -> None:
    assert loaded("[server]\nport = -1", {"ANTIPHON_PORT": "2"}).settings.port == 2


@pytest.mark.parametrize("variable", sorted(environment_names()))
def test_every_name_in_the_environment_sets_its_setting(variable) -> None:
    table, name = environment_names()[variable]
    words = {"strict": "true", "log_json": "1", "allow_anonymous": "True", "pdf": "refuse"}
    words |= {"log_level": "error", "coordination_policy": "closed", "host": "localhost", "keys_file": "k"}
    words |= {"tick": "7", "workers": "7"}
    words |= {"admin_key": "0123456789abcdef", "admin_key_file": "f", "coordination": "redis://h"}
    Path("f").write_text("0123456789abcdef")
    tables = loaded(UPSTREAM, {variable: words.get(name, "4096")}).tables
    value = getattr(getattr(tables, table), name)
    assert value != getattr(getattr(File(), table), name)
    others = [each for each in Limits.__struct_fields__ if each != name]
    assert all(getattr(tables.limits, each) == getattr(Limits(), each) for each in others)


def test_what_is_no_setting_sets_nothing() -> None:
    assert load(None, {"ANTIPHON_COLOUR": "blue", "CONNECT": "1", "antiphon_gap": "1"}).settings == Settings()


def test_a_queue_of_no_length_is_one() -> None:
    assert loaded("[limits]\nqueue_length = 0").settings.limits.queue_length == 0
    assert load(None, {"ANTIPHON_QUEUE_LENGTH": "0"}).settings.limits.queue_length == 0


def test_a_variable_that_nothing_reads_is_told_without_its_value() -> None:
    environ = {"ANTIPHON_QUEUE_LENGHT": "sekret"}
    said = "ANTIPHON_QUEUE_LENGHT: no setting has this name; did you mean ANTIPHON_QUEUE_LENGTH?"
    assert loaded("", environ).warnings == [said]
    with pytest.raises(ConfigError) as error:
        loaded("port = 1", environ)
    assert error.value.warnings == (said,)


def test_a_variable_that_the_file_or_a_flag_names_is_read() -> None:
    environ = {"ANTIPHON_GPU1": "http://127.0.0.1:8000/v1", "ANTIPHON_OTHER": "k"}
    file = UPSTREAM.replace("http://127.0.0.1:8000/v1", "${ANTIPHON_GPU1}")
    assert loaded(file, environ).warnings == ["ANTIPHON_OTHER: no setting has this name"]
    flags = {
        ("upstreams", 0, "name"): Flag("upstream", "--upstream"),
        ("upstreams", 0, "base_url"): Flag("http://127.0.0.1:8000/v1", "--upstream"),
        ("upstreams", 0, "api_key"): Flag("k", "--api-key-env", "ANTIPHON_OTHER"),
    }
    assert loaded("", {"ANTIPHON_OTHER": "k"}, flags).warnings == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONNECT", "soon"),
        ("CONNECT", "0"),
        ("CONNECT", "-1"),
        ("CONNECT", "inf"),
        ("GAP", ""),
        ("MAX_BODY", "1023"),
        ("MAX_BODY", "1.5"),
        ("MAX_BODY", "32MiB"),
        ("QUEUE_LENGTH", "-1"),
        ("STRICT", "perhaps"),
        ("PORT", "http"),
        ("LOG_LEVEL", "loud"),
        ("KEYS_FILE", ""),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name_in_the_environment(name, value) -> None:
    (said,) = refused("", {f"ANTIPHON_{name}": value})
    assert said.startswith(f"ANTIPHON_{name}: must be ")


def test_a_key_from_above_stands_over_a_keys_file_from_below() -> None:
    Path("k").write_text("fedcba9876543210")
    file = '[server]\nadmin_key_file = "missing"'
    assert loaded(file, {"ANTIPHON_ADMIN_KEY": "0123456789abcdef"}).settings.admin_key == "0123456789abcdef"
    file = '[server]\nadmin_key = "0123456789abcdef"'
    assert loaded(file, {"ANTIPHON_ADMIN_KEY_FILE": "k"}).settings.admin_key == "fedcba9876543210"
    both = {"ANTIPHON_ADMIN_KEY_FILE": "k", "ANTIPHON_ADMIN_KEY": "0123456789abcdef"}
    assert refused("", both) == ["ANTIPHON_ADMIN_KEY_FILE: give either admin_key or admin_key_file, not both"]


def test_an_upstream_of_flags_stands_alone() -> None:
    flags = {
        ("upstreams", 0, "name"): Flag("upstream", "--upstream"),
        ("upstreams", 0, "base_url"): Flag("http://h/v1", "--upstream"),
        ("upstreams", 0, "slots"): Flag("3", "--slots"),
    }
    found = loaded(UPSTREAM + MODEL, {}, flags)
    assert [each.name for each in found.settings.upstreams] == ["upstream"]
    assert found.settings.upstreams[0].slots == 3
    assert found.settings.models == ()
    wrong = {**flags, ("upstreams", 0, "slots"): Flag("0", "--slots")}
    assert refused("", {}, wrong) == ["--slots: must be a whole number from 1 to 1000000 or auto"]


def test_the_same_is_read_again_under_the_same_flags() -> None:
    flags = {("server", "workers"): Flag(2, "--workers"), ("server", "admin_key"): Flag("sekret" * 3, "--x")}
    first = loaded("[server]\nport = 1", {}, flags)
    Path("a.toml").write_text("[server]\nport = 2\nworkers = 5")
    again = pickle.loads(pickle.dumps(first)).again({"ANTIPHON_STRICT": "1"})
    settings = again.settings
    assert (settings.port, settings.workers, settings.strict) == (2, 2, True)
    assert "sekret" not in repr(first)
    assert "sekret" not in repr(again)


def test_the_file_that_is_found(here) -> None:
    assert find(None, {}) is None
    assert find(None, {"ANTIPHON_CONFIG": "x.toml"}) == Path("x.toml")
    assert find(Path("y.toml"), {"ANTIPHON_CONFIG": "x.toml"}) == Path("y.toml")
    Path("antiphon.toml").touch()
    assert find(None, {}) == Path("antiphon.toml")
    assert find(None, {"ANTIPHON_CONFIG": ""}) == Path("antiphon.toml")
    assert find(None, {"ANTIPHON_CONFIG": "x.toml"}) == Path("x.toml")


# --- Warnings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            UPSTREAM + UPSTREAM.replace("gpu1", "gpu2") + MODEL,
            ["a.toml:4: upstreams[1]: no model uses gpu2"],
        ),
        (
            "[health]\nbackoff_first = 61",
            ["a.toml:2: health.backoff_first: is longer than backoff_max, which is the longest wait"],
        ),
        (
            UPSTREAM.replace("127.0.0.1", "api.example.com") + 'api_key = "${K}"',
            ["a.toml:3: upstreams[0].base_url: http:// sends the key unencrypted over the network"],
        ),
        (
            UPSTREAM
            + MODEL
            + "window = 10\nfallbacks.overflow = 'n'\n"
            + MODEL.replace('"m"', '"n"')
            + "window = 10",
            ["a.toml:8: models[0].fallbacks.overflow: n has no larger window (10 tokens) than m (10)"],
        ),
        (UPSTREAM + MODEL + "fallbacks.overflow = 'n'\n" + MODEL.replace('"m"', '"n"') + "window = 10", []),
        (
            UPSTREAM
            + MODEL
            + "window = 9\nfallbacks.overflow = 'n'\n"
            + MODEL.replace('"m"', '"n"')
            + "window = 10",
            [],
        ),
        (UPSTREAM.replace("127.0.0.1", "10.0.0.1") + 'api_key = "${K}"', []),
        (UPSTREAM.replace("127.0.0.1", "gpu.lan") + 'api_key = "${K}"', []),
        (UPSTREAM.replace("127.0.0.1", "gpu") + 'api_key = "${K}"', []),
        (UPSTREAM.replace("http://127.0.0.1", "https://api.example.com") + 'api_key = "${K}"', []),
        (UPSTREAM.replace("127.0.0.1", "api.example.com"), []),
    ],
)
def test_what_is_strange_earns_a_warning(text, said) -> None:
    assert loaded(text, {"K": "k"}).warnings == said


# --- Whatever is in the file ----------------------------------------------------------------------


_TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from([*EXAMPLE.read_text().split("\n"), "[server]", "[[models]]", "port = [", "${", "x = '"]),
    max_size=25,
).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(_TEXTS)
def test_any_text_is_settings_or_an_error(text) -> None:
    try:
        found = loaded(text, {"HOSTED_API_KEY": "sekret"})
    except ConfigError as error:
        assert error.errors
        assert all(re.match(r"a\.toml: |a\.toml:\d+: ", line) for line in error.errors), error.errors
        assert "sekret" not in str(error)
    else:
        assert isinstance(found.settings, Settings)
        assert "sekret" not in repr(found)
