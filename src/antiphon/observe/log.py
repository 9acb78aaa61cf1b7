"""How this process logs: structlog, one line an event, for people or as JSON.

Owns the format and the bridge from the standard library's loggers. Values that could be secret never
reach it: records have no fields for them, and of an exception only its type and where it was raised are
told. A message may quote what a client said, and a frame's variables hold keys and prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import sys
import traceback
from typing import Any, TextIO, cast

import msgspec
import structlog


class _Lines(io.TextIOBase):
    """Standard error, perhaps closed, or its reader gone: what nobody can read must not end what wrote it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


_LEVELS = logging.getLevelNamesMapping()


class _Threshold:
    """Drops what is below the level. Loggers are cached with it, so that the level can change under them."""

    def __init__(self) -> None:
        self.number = logging.INFO

    def __call__(
        self, logger: Any, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if _LEVELS[method.upper()] < self.number:
            raise structlog.DropEvent
        return event


_threshold = _Threshold()


_BREAKS = re.compile(r"""[\s='"]""")


def _word(value: object) -> str:
    """As it is, if it is one printable word: nothing may look like the next value, or the next line."""
    if isinstance(value, str) and value.isprintable() and not _BREAKS.search(value):
        return value
    return repr(value)


def _plain(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    """A line as the console's, without colours, for a file or a pipe.

    Every request is a line, also one that is turned away: the console's renderer takes five times as long.
    """
    begins = f"{event.pop('timestamp', '')} [{event.pop('level', method):<9}] {event.pop('event', ''):<30} "
    raised = event.pop("exception", "")
    values = " ".join([f"{key}={_word(event[key])}" for key in sorted(event)])
    return f"{begins}{values}".rstrip() + (f"\n{raised}" if raised else "")


def _json(event: Any, default: Any = None, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=default).decode()


def set_level(level: str) -> None:
    """From now on. `level` is a name of the standard library's."""
    number = _LEVELS[level.upper()]
    _threshold.number = number
    logging.getLogger().setLevel(max(number, logging.WARNING))


def _told(error: BaseException | None) -> str:
    """Where it was raised and of what type it is, with what caused it. Only the system's errors say what."""
    if error is None:
        return ""
    before = error.__cause__ if error.__suppress_context__ or error.__cause__ else error.__context__
    earlier = f"{_told(before)}\nand then:\n" if before is not None else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    named = f"{type(error).__qualname__}: {error}" if isinstance(error, OSError) else type(error).__qualname__
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return f"{earlier}{frames}" + "\nof it:\n".join((named, *map(_told, parts)))


def _text_of(exc_info: structlog.typing.ExcInfo) -> str:
    return _told(exc_info[1])


_with_exception = structlog.processors.ExceptionRenderer(_text_of)


def configure(*, level: str, as_json: bool) -> None:
    """Set up logging for the process, to standard error. `level` is a name of the standard library's."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer(_json)
    elif sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = _plain
    structlog.configure(
        processors=[_threshold, *shared, _with_exception, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lines(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _with_exception,
                renderer,
            ],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler (asyncio: `loop.set_exception_handler`).

    Its own would tell the exception's message and a callback's arguments.
    """
    message = str(context.get("message", ""))
    structlog.get_logger("antiphon").error(
        "unhandled",
        what=message if not message.startswith("Exception in callback") else "exception in a callback",
        traceback=_told(context.get("exception")),
    )


def log_bug(log: Any, error: BaseException, *, request_id: str) -> None:
    """One traceback for a bug of ours. Its message stays out: it may quote what a client said."""
    log.error("internal", request_id=request_id, error=type(error).__name__, traceback=_told(error))
