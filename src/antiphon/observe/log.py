"""How this process logs: structlog, one line an event, for people or as JSON.

Owns the format and the bridge from the standard library's loggers. Values that could be secret never
reach it: records have no fields for them.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog


def configure(*, level: str, as_json: bool) -> None:
    """Set up logging for the process, to standard error. `level` is a name of the standard library's."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer]
        if as_json
        else [*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([structlog.processors.format_exc_info] if as_json else []),
                renderer,
            ],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


def log_bug(log: Any, error: BaseException, *, request_id: str) -> None:
    """One traceback for a bug of ours. Its message stays out: it may quote what a client said."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("internal", request_id=request_id, error=type(error).__name__, traceback=frames)
