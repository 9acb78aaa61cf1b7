"""What each mistake in a file is told as: its place, what is wrong, what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.config import ConfigError
from antiphon.config_file import load
from config_texts import MODEL, UPSTREAM, refused


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder of its own; files are named as a user would name them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


MISTAKES = [
    # Names
    ("[server]\nprot = 1", "2: server.prot: there is no such setting; did you mean port?"),
    ("[sever]\nport = 1", "1: sever: there is no such table; did you mean [server]?"),
    ("[[sever]]", "1: sever: there is no such table; did you mean [server]?"),
    (
        UPSTREAM.replace("upstreams", "upstream"),
        "1: upstream: there is no such table; did you mean [[upstreams]]?",
    ),
    (
        MODEL + UPSTREAM.replace("[[upstreams]]", "[upstream]"),
        "4: upstream: there is no such table; did you mean [[upstreams]]?",
    ),
    (UPSTREAM + "[model]\nname = 'm'", "4: model: there is no such table; did you mean [[models]]?"),
    (
        UPSTREAM
        + MODEL
        + "fallbacks.failed = 'n'\n"
        + MODEL.replace("models", "model").replace('"m"', '"n"'),
        "8: model: there is no such table; did you mean [[models]]?",
    ),
    ("server = {}\nmodels = 3", "2: models: must be a list of tables: [[models]]"),
    ("[quirks]\nprefill = true", "1: quirks: there is no such table here; it belongs to [[upstreams]]"),
    (
        "[database]\nx = 1",
        (
            "1: database: there is no such table; there is [server], [[upstreams]], [[models]], [limits], "
            "[health], [retries]"
        ),
    ),
    ("model = 1", "1: model: there is no such setting here; it belongs to [[models]]"),
    (
        "[retries]\nx = 1",
        "2: retries.x: there is no such setting; there is attempts, budget",
    ),
    ("port = 1", "1: port: there is no such setting here; it belongs to [server]"),
    ("[server]\ngap = 1", "2: server.gap: there is no such setting here; it belongs to [limits]"),
    (
        "[limits]\nslots = 1",
        "2: limits.slots: there is no such setting here; it belongs to [[upstreams]]",
    ),
    (MODEL + UPSTREAM + "wieght = 1", "7: upstreams[0].wieght: there is no such setting; there is name, "),
    (
        UPSTREAM + '[[models]]\nname = "m"\ntargets = [\n  { upstream = "gpu1", wieght = 1 },\n]',
        "7: models[0].targets[0].wieght: there is no such setting; did you mean weight?",
    ),
    (
        UPSTREAM + MODEL + "[models.overrides]\ntemprature = 1",
        "8: models[0].overrides.temprature: there is no such setting; did you mean temperature?",
    ),
    # Values
    ("[server]\nport = 65536", "2: server.port: must be a whole number from 0 to 65535; it is 65536"),
    ('[server]\nport = "80"', '2: server.port: must be a whole number from 0 to 65535; it is "80"'),
    ("[server]\nport = true", "2: server.port: must be a whole number from 0 to 65535; it is true"),
    ("[server]\nworkers = 0", "2: server.workers: must be a whole number from 1 to 1024; it is 0"),
    ('[server]\nstrict = "yes"', '2: server.strict: must be true or false; it is "yes"'),
    (
        '[server]\npdf = "image"',
        '2: server.pdf: must be text, images or refuse; it is "image"; did you mean images?',
    ),
    ('[server]\nhost = ""', '2: server.host: must be a text that is not empty; it is ""'),
    ("[server]\nhost = 1979-05-27", "2: server.host: must be a text that is not empty"),
    ("[server]\nkeys_file = [1]", "2: server.keys_file: must be a text that is not empty"),
    ("[limits]\ngap = 0", "2: limits.gap: must be a number greater than 0; it is 0"),
    ("[limits]\ngap = inf", "2: limits.gap: must be a number greater than 0; it is Infinity"),
    ("[limits]\ngap = nan", "2: limits.gap: must be a number greater than 0; it is NaN"),
    (
        "[limits]\nmax_body = 1023",
        "2: limits.max_body: must be a whole number from 1024 to 1099511627776; it is 1023",
    ),
    (
        "[limits]\nmax_body = 1.5e9",
        "2: limits.max_body: must be a whole number from 1024 to 1099511627776; it is ",
    ),
    ("[limits]\ntick = 61", "2: limits.tick: must be a number greater than 0 and at most 60; it is 61"),
    (
        "[limits]\nqueue_length = -1",
        "2: limits.queue_length: must be a whole number from 0 to 1000000000; it is -1",
    ),
    ("[server]\nworkers = 8080", "2: server.workers: must be a whole number from 1 to 1024; it is 8080"),
    (
        "[health]\nfailure_rate = 3",
        "2: health.failure_rate: must be a number greater than 0 and at most 1; it is 3",
    ),
    (
        "[health]\nvolume = 10000000000000000000",
        "2: health.volume: must be a whole number from 1 to 1000000; it is 10000000000000000000",
    ),
    ("[retries]\nbudget = 2", "2: retries.budget: must be a number from 0 to 1; it is 2"),
    ("[retries]\nattempts = 0", "2: retries.attempts: must be a whole number from 1 to 1000000; it is 0"),
    ("[health]\nopen_after = 0", "2: health.open_after: must be a whole number from 1 to 1000000; it is 0"),
    (
        UPSTREAM + "slots = 0",
        "4: upstreams[0].slots: must be a whole number from 1 to 1000000 or auto; it is 0",
    ),
    (
        UPSTREAM + 'slots = "atuo"',
        (
            '4: upstreams[0].slots: must be a whole number from 1 to 1000000 or auto; it is "atuo"; '
            "did you mean auto?"
        ),
    ),
    (
        UPSTREAM.replace("gpu1", "gpu 1"),
        (
            '2: upstreams[0].name: must be 1 to 64 letters, digits, ".", "_" or "-", the first a letter or '
            'digit; it is "gpu 1"'
        ),
    ),
    (UPSTREAM + "quirks = 3", "4: upstreams[0].quirks: must be a table; it is 3"),
    (
        UPSTREAM + MODEL + "window = 0",
        "7: models[0].window: must be a whole number from 1 to 1000000000; it is 0",
    ),
    (
        UPSTREAM + '[[models]]\nname = "m"\ntargets = [{ upstream = "gpu1", weight = 0 }]',
        "6: models[0].targets[0].weight: must be a number greater than 0; it is 0",
    ),
    (
        UPSTREAM + MODEL + '[models.overrides]\neffort = "hihg"',
        (
            '8: models[0].overrides.effort: must be low, medium, high, xhigh or max; it is "hihg"; '
            "did you mean high?"
        ),
    ),
    (
        UPSTREAM + MODEL + "overrides.temperature = 3",
        "7: models[0].overrides.temperature: must be a number from 0 to 2; it is 3",
    ),
    # Forms
    ("server = 1", "1: server: must be a table: [server]"),
    ("[[server]]", "1: server: must be a table: [server]"),
    (
        "[upstreams]\nname = 1",
        "1: upstreams: must be a list of tables: write [[upstreams]], also where there is one",
    ),
    (
        '[server]\ncoordination = "redis://h"\n[upstreams]\nname = "gpu1"\n' + MODEL,
        "3: upstreams: must be a list of tables: write [[upstreams]], also where there is one",
    ),
    (
        UPSTREAM + '[[models]]\nname = "m"\n[models.targets]\nupstream = "gpu1"',
        "6: models[0].targets: must be a list of tables: write [[models.targets]], also where there is one",
    ),
    ("upstreams = [1]", "1: upstreams[0]: must be a table: [[upstreams]]"),
    (UPSTREAM + MODEL + "fallbacks = 1", "7: models[0].fallbacks: must be a table: [models.fallbacks]"),
    ('[[upstreams]]\nname = "a"', "1: upstreams[0]: base_url is missing: what stands before "),
    (
        UPSTREAM + "[[models]]\nupstream = 'gpu1'",
        "4: models[0]: name is missing: what clients ask for: exact, or",
    ),
    ("[server]\nport = ", "2: is not TOML: Invalid value"),
    ("[server]\nport = 1\nport = 2", "3: is not TOML: Cannot overwrite a value"),
    ("[server]\nhost = 'a", "2: is not TOML: "),
    ("a = [", "1: is not TOML: "),
    # Upstreams
    (
        UPSTREAM + UPSTREAM,
        "5: upstreams[1].name: there is an upstream gpu1 already: upstreams[0]",
    ),
    (
        UPSTREAM.replace("http://127.0.0.1:8000", "127.0.0.1:8000"),
        "3: upstreams[0].base_url: must begin with http:// or https://",
    ),
    (
        UPSTREAM.replace("127.0.0.1", "u:p@127.0.0.1"),
        "3: upstreams[0].base_url: must not contain a user name or password; give the key as api_key",
    ),
    (UPSTREAM + 'kind = "vlm"', "4: upstreams[0].kind: there is no kind vlm; did you mean vllm?"),
    (
        UPSTREAM + 'kind = "qqqqq"',
        "4: upstreams[0].kind: there is no kind qqqqq; there is auto, generic, ",
    ),
    (
        UPSTREAM + "quirks = { send_top = true }",
        "4: upstreams[0].quirks.send_top: there is no such fact; did you mean send_top_k?",
    ),
    (
        UPSTREAM + "[upstreams.quirks]\nqqqqq = 1",
        "5: upstreams[0].quirks.qqqqq: there is no such fact; core/dialects/quirks.py lists them",
    ),
    (
        UPSTREAM + 'quirks = { name = "x" }',
        "4: upstreams[0].quirks.name: there is no such fact",
    ),
    (
        UPSTREAM + 'quirks = { tool_choice = "require_only" }',
        (
            "4: upstreams[0].quirks.tool_choice: must be named, required_only or ignored; it is "
            '"require_only"; did you mean required_only?'
        ),
    ),
    (UPSTREAM + "quirks = { prefill = 1 }", "4: upstreams[0].quirks.prefill: must be a table; it is 1"),
    # Models
    (
        UPSTREAM + MODEL.replace("gpu1", "gpu2"),
        "6: models[0].upstream: there is no upstream gpu2; did you mean gpu1?",
    ),
    (MODEL, "3: models[0].upstream: there is no upstream gpu1; there is none"),
    (
        UPSTREAM + '[[models]]\nname = "m"\ntargets = [{ upstream = "other" }]',
        "6: models[0].targets[0].upstream: there is no upstream other; there is gpu1",
    ),
    (UPSTREAM + MODEL + MODEL, "8: models[1].name: there is a model m already: models[0]"),
    (
        UPSTREAM + (MODEL * 2).replace('"m"', '"*"'),
        "8: models[1].name: there is a catch-all already: models[0]",
    ),
    (
        UPSTREAM + MODEL.replace('"m"', '"*"') + MODEL.replace('"m"', '"**"'),
        "8: models[1].name: there is a catch-all already; this one would never be used",
    ),
    (
        UPSTREAM + '[[models]]\nname = "m"',
        "4: models[0]: upstream is missing: where it runs, the name of one of the upstreams",
    ),
    (
        UPSTREAM + MODEL + 'targets = [{ upstream = "gpu1" }]',
        "7: models[0].targets: give either upstream or targets, not both",
    ),
    (
        UPSTREAM + '[[models]]\nname = "m"\nmodel = "x"\ntargets = [{ upstream = "gpu1" }]',
        "6: models[0].model: belongs into each of the targets, where there are targets",
    ),
    (
        UPSTREAM + MODEL + '[models.fallbacks]\noverflow = "n"',
        "8: models[0].fallbacks.overflow: there is no model n",
    ),
    (
        UPSTREAM + MODEL + '[models.fallbacks]\nfailed = "m"',
        "8: models[0].fallbacks.failed: m leads back to m: fallbacks must come to an end",
    ),
    # The server
    (
        '[server]\nhost = "0.0.0.0"',
        (
            "2: server.host: only loopback addresses are served without keys: make one "
            "(`antiphon key new NAME`) and set keys_file, or set allow_anonymous = true"
        ),
    ),
    (
        '[server]\ncoordination = "http://h"\n' + UPSTREAM,
        "2: server.coordination: must begin with redis://, rediss:// or unix://, or be local:FOLDER",
    ),
    (
        '[server]\ncoordination = "redis://:s3cret@h/0?max_connections=5"\n' + UPSTREAM,
        "2: server.coordination: option max_connections of the URL: not known here",
    ),
    (
        '[server]\ncoordination = "redis://h/x"\n' + UPSTREAM,
        "2: server.coordination: the database at the end of the URL: must be a number",
    ),
    (
        '[server]\ncoordination = "redis://h"',
        "2: server.coordination: there are no upstreams to share; the embedded ones are this gateway's own",
    ),
    # Variables
    (
        UPSTREAM + 'api_key = "${NOT_SET}"',
        "4: upstreams[0].api_key: the environment variable NOT_SET is not set",
    ),
    (
        UPSTREAM + 'api_key = "${}"',
        "4: upstreams[0].api_key: ${ begins the name of a variable, as in ${NAME}; $$ is a plain $",
    ),
    (
        '[server]\nhost = "${HO ST}"',
        "2: server.host: ${ begins the name of a variable, as in ${NAME}; $$ is a plain $",
    ),
    (
        '[server]\nhost = "a${"',
        "2: server.host: ${ begins the name of a variable, as in ${NAME}; $$ is a plain $",
    ),
    # Files with keys
    (
        UPSTREAM + 'api_key_file = "missing"',
        "4: upstreams[0].api_key_file: missing: cannot be read: No such file or directory",
    ),
    (
        UPSTREAM + 'api_key = "x"\napi_key_file = "missing"',
        "5: upstreams[0].api_key_file: give either api_key or api_key_file, not both",
    ),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[said[:60] for _, said in MISTAKES])
def test_a_mistake_is_told_with_its_place_and_what_would_do(text, said) -> None:
    first, *others = refused(text)
    assert first.startswith(f"a.toml:{said}"), first
    assert others == []  # one mistake is one message


def test_all_mistakes_are_told_in_the_order_of_the_file() -> None:
    text = f'[server]\nport = -1\nprot = 1\n{UPSTREAM}slots = 0\n[[upstreams]]\n[limits]\ngap = "x"\n'
    assert [line.partition(": must")[0].partition(": there")[0] for line in refused(text)] == [
        "a.toml:2: server.port",
        "a.toml:3: server.prot",
        "a.toml:7: upstreams[0].slots",
        "a.toml:8: upstreams[1]: name is missing: what models, logs and metrics call it",
        (
            "a.toml:8: upstreams[1]: base_url is missing: what stands before `/chat/completions`; usually it "
            "ends in `/v1`"
        ),
        "a.toml:10: limits.gap",
    ]


def test_fallbacks_in_a_circle_are_told_at_each_of_its_models() -> None:
    def model(name: str, why: str, to: str) -> str:
        return f'[[models]]\nname = "{name}"\nupstream = "gpu1"\nfallbacks.{why} = "{to}"\n'

    text = UPSTREAM + model("a", "failed", "b") + model("b", "overflow", "c") + model("c", "overloaded", "b")
    assert refused(text) == [
        "a.toml:11: models[1].fallbacks.overflow: c leads back to b: fallbacks must come to an end",
        "a.toml:15: models[2].fallbacks.overloaded: b leads back to c: fallbacks must come to an end",
    ]


def test_an_upstream_whose_name_is_wrong_is_not_missed_elsewhere() -> None:
    assert len(refused(UPSTREAM.replace('"gpu1"', "1") + MODEL)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", "a.toml: is not UTF-8"),
        (b"a = " + b"9" * 5000, "a.toml: is not TOML that can be read"),
        (b"a = " + b"[" * 100_000, "a.toml: is not TOML that can be read"),
        (b"#" * (4 * 1024 * 1024 + 1), "a.toml: is longer than 4194304 bytes"),
    ],
)
def test_what_is_no_file_of_settings(content, said) -> None:
    Path("a.toml").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load(Path("a.toml"), {})
    assert str(error.value) == said


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"^a\.toml: cannot be read: No such file or directory$"):
        load(Path("a.toml"), {})
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory$"):
        load(Path(), {})


def test_a_byte_order_mark_and_carriage_returns_do_no_harm() -> None:
    Path("a.toml").write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert load(Path("a.toml"), {}).settings.port == 1
