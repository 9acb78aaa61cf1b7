"""Log lines: JSON where JSON was asked for, from structlog and from the standard library, and no content."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import io
import json
import logging
import sys
from collections.abc import Callable

import pytest
import structlog
import uvloop

from antiphon.observe.log import configure, log_bug, log_unhandled, set_level

SECRET = "PROMPT-AND-KEY-9f3"


@pytest.fixture
def said(capsys):
    """Asked for what was written to standard error; the process's logging is put back afterwards."""
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def lines(said: Callable[[], str]) -> list[dict]:
    return parsed(said())


def parsed(text: str) -> list[dict]:
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")] if text else []


def fail_with_content() -> None:
    prompt = SECRET  # a local variable of the frame: tracebacks must not show it
    raise ValueError(f"cannot handle {prompt!r}")


def test_a_line_is_json(said) -> None:
    configure(level="info", as_json=True)
    structlog.get_logger("antiphon.t").info("exchange", model='a"b\nc\u2028', counts={"late": 1}, none=None)
    (line,) = lines(said)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "exchange",
        "level": "info",
        "model": 'a"b\nc\u2028',
        "counts": {"late": 1},
        "none": None,
    }


def test_lines_of_the_standard_library_are_json_too(said) -> None:
    configure(level="info", as_json=True)
    logger = logging.getLogger("uvicorn.error")
    logger.warning("port %d is\ntaken", 8080)
    try:
        raise OSError("no")
    except OSError:
        logger.exception("it failed")
    first, second = lines(said)
    assert (first["event"], first["level"]) == ("port 8080 is\ntaken", "warning")
    assert (second["event"], second["level"]) == ("it failed", "error")
    assert "OSError: no" in second["exception"]


def test_exceptions_are_part_of_their_line(said) -> None:
    configure(level="info", as_json=True)
    try:
        raise OSError("no")
    except OSError:
        structlog.get_logger().exception("it failed")
    (line,) = lines(said)
    assert "OSError: no" in line["exception"]


@pytest.mark.parametrize(("level", "heard"), [("debug", 4), ("info", 3), ("WARNING", 2), ("error", 1)])
def test_levels(said, level, heard) -> None:
    configure(level=level, as_json=True)
    log = structlog.get_logger()
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("x")
    assert len(lines(said)) == heard


def test_the_level_changes_under_loggers_that_are_in_use(said) -> None:
    configure(level="error", as_json=True)
    log = structlog.get_logger("antiphon.t")
    log.info("not heard")
    set_level("info")
    log.info("heard")
    set_level("error")
    log.info("not heard")
    assert [line["event"] for line in lines(said)] == ["heard"]


def test_libraries_are_heard_from_warning_on(said) -> None:
    configure(level="debug", as_json=True)
    for name in ("debug", "info", "warning"):
        getattr(logging.getLogger("asyncio"), name)("x")
    assert [line["level"] for line in lines(said)] == ["warning"]


def test_for_people_it_is_one_line_without_colours_on_a_pipe(said) -> None:
    configure(level="info", as_json=False)
    structlog.get_logger().info("exchange", model="m", status=200)
    logging.getLogger("uvicorn.error").warning("port taken")
    text = said()
    assert "\x1b" not in text
    first, second = text.splitlines()
    assert "exchange" in first
    assert "model=m" in first
    assert "port taken" in second


@pytest.mark.parametrize("as_json", [True, False])
def test_a_bug_is_a_traceback_without_what_it_said(said, as_json) -> None:
    configure(level="info", as_json=as_json)
    with contextlib.suppress(ValueError):
        try:
            fail_with_content()
        except ValueError as error:
            log_bug(structlog.get_logger("antiphon.t"), error, request_id="req_1")
            raise
    text = said()
    assert SECRET not in text
    for told in ("internal", "req_1", "ValueError", "fail_with_content"):
        assert told in text
    if as_json:
        (line,) = parsed(text)
        assert line["level"] == "error"


@pytest.mark.parametrize("on_a_terminal", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("logger", [structlog.get_logger, lambda: logging.getLogger("uvicorn.error")])
def test_no_exception_tells_what_it_said_or_what_its_frames_hold(
    monkeypatch, said, as_json, on_a_terminal, logger
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_a_terminal)
    configure(level="info", as_json=as_json)
    try:
        try:
            fail_with_content()
        except ValueError as cause:
            raise RuntimeError(f"because of {SECRET}") from cause
    except RuntimeError as error:
        try:
            raise ExceptionGroup(SECRET, [error])
        except ExceptionGroup:
            logger().exception("it failed")
    text = said()
    assert SECRET not in text
    for told in ("it failed", "ValueError", "RuntimeError", "ExceptionGroup", "in fail_with_content"):
        assert told in text


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_nobody_catches_is_told_without_what_it_said(said, new_loop) -> None:
    configure(level="info", as_json=True)

    async def fail() -> None:
        fail_with_content()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unhandled)
        loop.call_soon(functools.partial(int, SECRET))
        task = loop.create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(main())
    text = said()
    assert SECRET not in text
    callback, task = parsed(text)
    assert (callback["event"], callback["what"]) == ("unhandled", "exception in a callback")
    assert "ValueError" in callback["traceback"]
    assert task["what"] == "Task exception was never retrieved"
    assert "in fail_with_content" in task["traceback"]


def test_values_stay_one_word_and_one_line(said) -> None:
    configure(level="info", as_json=False)
    structlog.get_logger().info(
        "x", a="two words", b="a\nline=b", c="\x1b[31m", d=1.5, e=None, f="plain", g=""
    )
    assert said().rstrip("\n").partition("x  ")[2].strip() == (
        "a='two words' b='a\\nline=b' c='\\x1b[31m' d=1.5 e=None f=plain g="
    )


def test_a_reader_that_is_gone_ends_nothing(monkeypatch, said) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    configure(level="info", as_json=True)
    structlog.get_logger("antiphon.t").info("nobody reads this")
