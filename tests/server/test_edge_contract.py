"""What edge.py and serve.py use of uvicorn's insides. pyproject.toml pins the range; this says what may break.

A new uvicorn is taken in only when this holds: each name below is read or overridden somewhere in the two
files, and nothing else of uvicorn is.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from antiphon.server import edge, serve
from server.harness import House, on_uvloop, post, until

# attribute of a live protocol -> what it is
PROTOCOL = {
    "config": uvicorn.Config,
    "cycle": RequestResponseCycle,
    "flow": FlowControl,
    "headers": list,
    "loop": asyncio.AbstractEventLoop,
    "parser": httptools.HttpRequestParser,
    "scope": dict,
    "transport": object,
    "url": bytes,
}
CYCLE = {
    "chunked_encoding": (bool, type(None)),
    "disconnected": bool,
    "keep_alive": bool,
    "message_event": asyncio.Event,
    "more_body": bool,
    "response_complete": bool,
    "response_started": bool,
    "transport": object,
}
OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "eof_received": ["self"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
    "on_message_begin": ["self"],
    "on_url": ["self", "url"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "send_400_response": ["self", "msg"],
    "_unsupported_upgrade_warning": ["self"],
}


def test_the_range_is_pinned_to_one_minor_version() -> None:
    (line,) = [line for line in requires("antiphon") or () if re.match(r"uvicorn\b", line)]
    assert ">=" in line
    assert "<" in line.replace(">=", "")


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_is_overridden_is_there_with_its_parameters(name) -> None:
    method = getattr(HttpToolsProtocol, name)
    assert list(inspect.signature(method).parameters) == OVERRIDDEN[name]
    assert not inspect.iscoroutinefunction(method)
    assert name in vars(edge.EdgeProtocol)


def test_nothing_is_overridden_by_accident() -> None:
    """Every own name that uvicorn's class has too stands in the table; every other is ours alone."""
    shared = {name for name in vars(edge.EdgeProtocol) if hasattr(HttpToolsProtocol, name)}
    assert shared - {"__module__", "__doc__", "__annotations__"} == set(OVERRIDDEN)


def test_own_state_does_not_collide_with_uvicorns() -> None:
    source = inspect.getsource(HttpToolsProtocol)
    own = set(edge.EdgeProtocol.__annotations__) | {
        name for name in vars(edge.EdgeProtocol) if not name.startswith("__") and name not in OVERRIDDEN
    }
    taken = {name for name in own if re.search(rf"self\.{name}\b", source)}
    assert taken == set()


def used(module: Any, owner: str) -> set[str]:
    """Attributes that a module reads of `self.<owner>` or a local called `owner`."""
    names = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Attribute):
            value = node.value
            if (isinstance(value, ast.Attribute) and value.attr == owner) or (
                isinstance(value, ast.Name) and value.id == owner
            ):
                names.add(node.attr)
    return names


def test_the_tables_name_everything_that_is_used() -> None:
    assert used(edge, "cycle") == set(CYCLE)
    assert used(edge, "flow") == {"write_paused", "resume_reading"}
    assert used(edge, "config") == {"app"}


@on_uvloop
async def test_a_live_protocol_has_these_attributes() -> None:
    async with House() as house:
        client = await house.client()
        client.send(post())
        visit = await house.visit()
        protocol = client.edge
        for name, kind in PROTOCOL.items():
            assert isinstance(getattr(protocol, name), kind), name
        for name, kinds in CYCLE.items():
            assert isinstance(getattr(protocol.cycle, name), kinds), name
        assert protocol.config.app is house.gateway
        assert protocol.scope["http_version"] == "1.1"
        assert protocol.scope["extensions"]["antiphon"] is protocol
        assert protocol.flow.write_paused is False
        assert (protocol.cycle.response_started, protocol.cycle.more_body) == (False, False)
        assert protocol in house.server.server_state.connections
        visit.head()
        visit.text("x")
        await client.event("content_block_delta")
        assert (protocol.cycle.response_started, protocol.cycle.chunked_encoding) == (True, True)
        visit.finish()
        visit.done()
        await client.response()
        assert protocol.cycle.response_complete
        await until(lambda: protocol.timeout_keep_alive_task is not None)


@on_uvloop
async def test_disconnected_stops_what_the_application_still_sends() -> None:
    """`_refuse` and `abort` rely on it: a task that goes on answering is neither heard nor logged."""
    async with House() as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        client.edge._disconnect_cycle()
        visit.answer()
        await until(lambda: not house.server.server_state.tasks)
        assert client.data == b""


def test_status_lines_for_everything_that_is_refused_at_the_edge() -> None:
    for status in (400, 408, 413, 431):
        assert STATUS_LINE[status].startswith(b"HTTP/1.1 %d " % status)
        assert STATUS_LINE[status].endswith(b"\r\n")


def test_the_server_has_what_is_used_of_it() -> None:
    assert list(inspect.signature(uvicorn.Server.startup).parameters) == ["self", "sockets"]
    assert list(inspect.signature(uvicorn.Server.shutdown).parameters) == ["self", "sockets"]
    assert list(inspect.signature(uvicorn.Server.handle_exit).parameters) == ["self", "sig", "frame"]
    overridden = {name for name in vars(serve.AntiphonServer) if hasattr(uvicorn.Server, name)}
    assert overridden - {"__module__", "__doc__", "__init__"} == {
        "startup",
        "shutdown",
        "capture_signals",
        "handle_exit",
    }
    source = inspect.getsource(uvicorn.Server)
    for name in (
        "self.started",
        "self.servers",
        "self.should_exit",
        "self.force_exit",
        "self.capture_signals()",
    ):
        assert name in source, name
    assert "with self.capture_signals()" in inspect.getsource(uvicorn.Server.serve)
