"""The papers are held to the code: generated sections, links, names of files, flags, variables, defaults."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

import antiphon
from antiphon import config
from antiphon.config_file import load
from antiphon.config_tables import environment_names
from antiphon.core import failover, stream
from antiphon.core.dialects import quirk_rows, quirks
from antiphon.core.recognise import HOSTS, METRICS, OWNERS, SERVERS, SIGNS, hosted_kind

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LIMITS = config.Limits()
UPSTREAMS = ROOT / "docs" / "upstreams.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FILE = re.compile(r"[\w./-]*\w\.(?:py|mjs|md|toml|jsonl|json|txt|template)")
_FLAG = re.compile(r"--[a-z][a-z-]*")
_VARIABLE = re.compile(r"ANTIPHON_[A-Z_]*[A-Z]")


def _generator():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = _generator()


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def _written(page: Path) -> str:
    """A page without its generated sections: what the code says of itself is not this file's to judge."""
    return generate._SECTION.sub("", page.read_text())


def _named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=_named)


# --- Generated sections ---------------------------------------------------------------------------


def test_generated_sections_say_what_the_code_says():
    assert [_named(page) for page in generate.stale()] == [], "run docs/generate.py"


def test_every_section_stands_in_a_page_and_every_marker_has_its_end():
    texts = [page.read_text() for page in PAGES if page.is_relative_to(ROOT / "docs")]
    begun = [name for text in texts for name in re.findall(r"<!-- generated: (\S+) -->", text)]
    ended = [name for text in texts for name in re.findall(r"<!-- end: (\S+) -->", text)]
    assert begun == ended
    assert set(begun) == set(generate.SECTIONS)


def test_a_stale_section_is_noticed_and_mended(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: limits -->\nold\n<!-- end: limits -->\nafter\n")
    fresh = generate.stale(tmp_path)[page]
    assert fresh.startswith("before\n<!-- generated: limits -->\n| setting |")
    assert fresh.endswith("\n<!-- end: limits -->\nafter\n")
    page.write_text(fresh)
    assert generate.stale(tmp_path) == {}


def test_check_fails_and_writes_nothing_while_a_page_is_stale(tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("<!-- generated: block-table -->\n<!-- end: block-table -->\n")
    before = page.read_text()
    monkeypatch.setattr(generate, "DOCS", page.parent)
    monkeypatch.setattr(generate, "stale", lambda real=generate.stale: real(page.parent))
    assert generate.main(["--check"]) == 1
    assert page.read_text() == before
    assert "+| state |" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_an_unknown_section_is_an_error():
    with pytest.raises(KeyError):
        generate.renewed("<!-- generated: no-such -->\n<!-- end: no-such -->\n")


def test_both_tables_are_whole_in_the_page():
    phases, blocks = generate.phase_table(), generate.block_table()
    for name in {name for rows in stream.PHASE.values() for name in rows}:
        assert f"| `{generate._word(name)}` |" in phases
    assert phases.count("\n") == 1 + len(next(iter(stream.PHASE.values())))
    assert blocks.count("\n") == 1 + len(stream.BLOCK)


def test_the_page_explains_every_input_of_both_tables():
    lines = (ROOT / "docs/architecture.md").read_text().split("\n")
    explained = {
        span for line in lines if "→" not in line and line.startswith("| `") for span in _SPAN.findall(line)
    }
    inputs = {name for table in (stream.PHASE, stream.BLOCK) for rows in table.values() for name in rows}
    assert {generate._word(name) for name in inputs} - explained == set()


def test_make_docs_writes_every_generated_page():
    recipe = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    writers = {_named(script) for script in (ROOT / "docs").glob("*.py")}
    assert set(re.findall(r"docs/\w+\.py", recipe)) == writers


# --- What the pages name --------------------------------------------------------------------------


@every_page
def test_relative_links_lead_somewhere(page):
    broken = []
    for target in _LINK.findall(_prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


def _anchors(file: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(_prose(file))
    }


@every_page
def test_files_that_are_named_exist(page):
    places = (
        ROOT,
        page.parent,
        ROOT / "src/antiphon",
        ROOT / "src/antiphon/server",
        ROOT / "src/antiphon/core",
    )
    places += (*(ROOT / "src/antiphon/core").glob("*/"), ROOT / "src/antiphon/core/surfaces/messages")
    places += (ROOT / "src/antiphon/server/coordination", ROOT / "src/antiphon/observe")
    places += (ROOT / "tests/conformance", ROOT / "examples")
    made = {"antiphon-keys.json"}  # by a command, for its user
    names = [span for span in _SPAN.findall(_prose(page)) if _FILE.fullmatch(span) and span not in made]
    assert [name for name in names if not any((place / name).exists() for place in places)] == []


@every_page
def test_commands_have_the_flags_that_are_printed(page):
    blocks = [code for _, code in _FENCE.findall(_written(page))]
    spans = _SPAN.findall(_FENCE.sub("", _written(page)))
    known = {
        name: {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        | {"--help"}
        for name, command in generate.commands().items()
    }
    printed = 0
    for line in "\n".join([*blocks, *spans]).replace("\\\n", " ").split("\n"):
        call = re.match(r"(?:\S*=\S* )*(?:\S*/)?antiphon ((?:[a-z]+ ?)+)(.*)$", line.partition(" #")[0])
        if call is None:
            continue
        printed += 1
        name = next(
            (name for name in sorted(known, key=len, reverse=True) if f"{call[1]} ".startswith(f"{name} ")),
            "",
        )
        assert name or any(each.startswith(call[1].strip()) for each in known), line
        assert set(_FLAG.findall(call[2])) <= known.get(name, set()), line
    assert printed or page != ROOT / "README.md"


@every_page
def test_flags_in_prose_exist(page):
    known = {
        flag
        for command in generate.commands().values()
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
    }
    known |= {"--check"}  # docs/generate.py's own
    known |= {flag for bench in (ROOT / "bench").glob("*.py") for flag in _FLAG.findall(bench.read_text())}
    # Of inference servers.
    foreign = {"--max-num-seqs", "--max-running-requests", "--parallel", "--jinja", "--metrics", "--no-slots"}
    foreign |= {"--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"}
    foreign |= {"--enable-prompt-tokens-details", "--enable-cache-report"}
    spans = [span for span in _SPAN.findall(_prose(page)) if span.startswith("--")]
    assert {span.split()[0] for span in spans} - known - foreign == set()


@every_page
def test_make_targets_that_are_named_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = [block for _, block in _FENCE.findall(page.read_text())]
    named = re.findall(r"^make ([a-z]+)", "\n".join([*code, *_SPAN.findall(_prose(page))]), re.MULTILINE)
    assert set(named) - targets == set()


@every_page
def test_environment_variables_that_are_named_exist(page):
    readers = [*(ROOT / "src").rglob("*.py"), ROOT / "tests/conftest.py", *(ROOT / "tests/live").glob("*.py")]
    known = {name for reader in readers for name in _VARIABLE.findall(reader.read_text())}
    known |= set(environment_names())
    assert set(_VARIABLE.findall(page.read_text())) - known == set()


@every_page
def test_defaults_that_are_told_are_the_defaults(page):
    """`gap` (180 s), `max_body` (32 MiB), `queue_length` (1024), `attempts` (2): each is checked."""
    tables = (LIMITS, config.RetrySettings(), config.HealthSettings())
    told = re.findall(r"`(\w+)` \((\d[\d.]*)( s| KiB| MiB|)\)", page.read_text().replace("\n", " "))
    for name, number, unit in told:
        size = {" KiB": 1024, " MiB": config.MIB}.get(unit, 1)
        table = next(table for table in tables if hasattr(table, name))
        assert float(number) * size == getattr(table, name), name
    assert told or page.name != "behavior.md"


def test_every_limit_is_told_in_the_page_on_behavior():
    text = (ROOT / "docs/behavior.md").read_text()
    assert [name for name in type(LIMITS).__struct_fields__ if f"`{name}`" not in text] == []


@every_page
def test_files_of_settings_that_are_printed_can_be_served(page, tmp_path):
    """The blocks of a page are one file: each goes on where the one before it has ended."""
    text = "\n".join(code for language, code in _FENCE.findall(_written(page)) if language == "toml")
    if "[[upstreams]]" not in text:
        return
    file = tmp_path / "antiphon.toml"
    file.write_text(text)
    loaded = load(file, {name: "a-key-that-is-set" for name in re.findall(r"\$\{(\w+)\}", text)})
    assert loaded.warnings == []
    assert loaded.settings.models


# --- The page on upstreams ------------------------------------------------------------------------


def _rows(page: Path, head: str) -> list[list[str]]:
    """The cells of the table that has this head, without the head."""
    lines = page.read_text().split("\n")
    begins = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[begins + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line[1:-1].split("|")])
    return rows


def test_each_kind_of_server_is_in_the_page_with_its_address():
    own, hosted = _rows(UPSTREAMS, "server | usual base URL"), _rows(UPSTREAMS, "API | base URL")
    kinds = {_SPAN.findall(row[2])[0] for row in (*own, *hosted)}
    rows = {name for name in quirks.names() if name not in {"generic", "anthropic-api"}}
    assert kinds == rows - {older for each in quirk_rows.OLDER.values() for _, older in each}
    for name, url, kind, *_ in hosted:
        found = hosted_kind(_SPAN.findall(url)[0])
        assert (found or "").removesuffix("-api") == _SPAN.findall(kind)[0], name


def test_how_each_kind_is_recognised_is_told():
    told = {kind for row in _rows(UPSTREAMS, "kind | by") for kind in _SPAN.findall(row[0])}
    signs = (
        {sign.kind for sign in SIGNS} | set(OWNERS.values()) | set(SERVERS.values()) | set(METRICS.values())
    )
    assert told == signs | {"generic"}
    assert {kind for _, kind in HOSTS} - told  # "the other hosted APIs"
    text = UPSTREAMS.read_text()
    assert [
        route for route in {sign.route.partition("?")[0] for sign in SIGNS} if f"`{route}`" not in text
    ] == []


def test_what_each_failure_means_is_told_as_it_is():
    told = {}
    for failure, elsewhere, finding, fallback in _rows(UPSTREAMS, "failure | another target"):
        names = [name for name in _SPAN.findall(failure) if name in failover.ROWS]
        assert names, failure
        for name in names:
            assert name not in told
            told[name] = (elsewhere == "yes", finding, "".join(_SPAN.findall(fallback)) or None)
    passing = {None: "", "well": "well", "busy": "busy", "loading": "loading"}
    assert told == {
        name: (row.elsewhere, passing.get(row.finding, "failed"), row.fallback)
        for name, row in failover.ROWS.items()
    }


# --- Lists that must be whole ---------------------------------------------------------------------


def test_every_runtime_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    rows = [
        line
        for line in (ROOT / "docs/decisions/0007-dependencies.md").read_text().split("\n")
        if line[:2] == "| "
    ]
    told = set(re.findall(r"[\w-]+", " ".join(row.split("|")[1] for row in rows)))
    assert {re.match(r"[\w-]+", each)[0] for each in wanted} - told == set()


def test_every_decision_is_listed():
    listed = set(_LINK.findall((ROOT / "docs/architecture.md").read_text().partition("## Decisions")[2]))
    assert listed == {f"decisions/{page.name}" for page in (ROOT / "docs/decisions").glob("*.md")}


def test_no_page_is_an_orphan():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(_prose(page))
        if not link.startswith("#") and "://" not in link
    }
    assert [_named(page) for page in PAGES if page.name != "README.md" and page not in linked] == []


def test_captured_data_is_described_as_it_is():
    """A data folder's page names no file that is not in it."""
    for page in sorted((ROOT / "tests/data").glob("*/README.md")):
        files = [file.name for file in page.parent.iterdir() if file.name != "README.md"]
        spans = _SPAN.findall(page.read_text())
        named = [span for span in spans if re.fullmatch(r"[\w./-]+\.(?:py|sse|json|jsonl)", span)]
        source = ROOT / "src" / "antiphon"
        assert [name for name in named if name not in files and not (source / name).exists()] == [], page


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == antiphon.__version__
