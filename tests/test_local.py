"""The supervisor of the embedded server, with a small fake in the child process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import textwrap
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

import antiphon.local
from antiphon.local import LocalServer, LocalServerError, available, jittered, slots_busy
from antiphon.local_place import Place

# Reads its line, takes the port and answers what the supervisor asks. The argument chooses its ways.
FAKE = textwrap.dedent("""
    import http.server, json, os, signal, socket, sys, threading
    way = sys.argv[1]
    if way == "broken":
        sys.exit("0.00.1 E srv: model file is damaged\\nRuntimeError: see above")
    config = json.loads(sys.stdin.buffer.readline())
    print("serving, parent", config["parent"], "sid", os.getsid(0) == os.getpid(), flush=True)
    if way == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    if way == "silent":
        signal.pause()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            allowed = self.headers["authorization"] == "Bearer " + config["api_key"]
            body = b"{}"
            if self.path == "/props" and allowed:
                body = json.dumps({"total_slots": 3, "default_generation_settings": {"n_ctx": 777}}).encode()
            if self.path == "/die":
                os._exit(7)
            self.send_response(200 if allowed or self.path == "/health" else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *args):
            pass

    class Server(http.server.HTTPServer):
        def server_bind(self):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.socket.bind(self.server_address)

    Server(("127.0.0.1", config["port"]), Answer).serve_forever()
""")

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    return tmp_path


def local(tmp_path, way="good", **options):
    options.setdefault("backoff", lambda _crashes: 0.0)
    return LocalServer(tmp_path / "m.gguf", command=[sys.executable, "-c", FAKE, way], **options)


class States:
    """Collects what `on_state` hears; `reached` waits until a state has come `times` times."""

    def __init__(self):
        self.seen = []
        self.changed = asyncio.Event()

    def __call__(self, state):
        self.seen.append(state)
        self.changed.set()

    async def reached(self, state, times=1):
        while self.seen.count(state) < times:
            self.changed.clear()
            await self.changed.wait()


async def get(server, path):
    async with aiohttp.ClientSession() as session:
        async with session.get(server.base_url.removesuffix("/v1") + path) as answer:
            return answer.status


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_it_starts_reports_the_servers_own_numbers_and_closes(tmp_path):
    states = States()
    server = local(tmp_path, on_state=states)
    assert server.state == "starting"
    assert (server.slots, server.window) == (4, 4096)
    await server.start()
    pid = server.pid
    assert server.state == "ready"
    assert (server.slots, server.window) == (3, 777)
    assert await get(server, "/health") == 200
    assert await get(server, "/props") == 401
    assert os.getsid(pid) == pid
    await server.aclose()
    await server.aclose()
    assert gone(pid)
    assert server.pid is None
    assert states.seen == ["ready", "stopped"]


async def test_a_crash_is_a_restart_at_the_same_address(tmp_path):
    states = States()
    async with local(tmp_path, on_state=states) as server:
        url, pid = server.base_url, server.pid
        os.kill(pid, signal.SIGKILL)
        await states.reached("ready", 2)
        assert states.seen == ["ready", "restarting", "ready"]
        assert server.base_url == url
        assert server.pid != pid
        assert await get(server, "/health") == 200


async def test_back_off_grows_with_each_crash_and_starts_anew_after_a_stable_time(tmp_path):
    states, asked = States(), []

    def backoff(crashes):
        asked.append(crashes)
        return 0.0

    server = local(tmp_path, on_state=states, backoff=backoff, stable_after=60)
    async with server:
        for crash in range(3):
            os.kill(server.pid, signal.SIGKILL)
            await states.reached("ready", crash + 2)
        assert asked == [0, 1, 2]

    asked.clear()
    trimmed = asyncio.Event()
    states = States()
    server = local(tmp_path, on_state=states, backoff=backoff, stable_after=0.01)
    async with server:
        for crash in range(3):
            # Each time that it found the child alive it looked after the log, too.
            trimmed.clear()
            server._place.bound_log = trimmed.set
            await trimmed.wait()
            os.kill(server.pid, signal.SIGKILL)
            await states.reached("ready", crash + 2)
        assert asked == [0, 0, 0]


async def test_while_it_restarts_the_port_is_refused_and_not_given_away(tmp_path):
    states = States()
    async with local(tmp_path, on_state=states, backoff=lambda _crashes: 3600.0) as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
        os.kill(server.pid, signal.SIGKILL)
        await states.reached("restarting")
        assert server.pid is None
        assert 3600 <= server.retry_after <= 3603
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(server, "/health")
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("127.0.0.1", port))
    assert server.state == "stopped"


async def test_a_first_start_that_fails_says_what_the_log_says(tmp_path):
    server = local(tmp_path, "broken")
    with pytest.raises(LocalServerError, match="ended with status 1.*model file is damaged.*--upstream"):
        await server.start()
    assert server.state == "failed"
    assert server.pid is None
    await server.aclose()


async def test_a_child_that_is_never_ready_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(antiphon.local, "_READY_WITHIN", 0.3)
    server = local(tmp_path, "silent")
    with pytest.raises(LocalServerError, match="was not ready within"):
        await server.start()
    assert server.pid is None
    await server.aclose()


async def test_a_command_that_cannot_run_fails(tmp_path):
    server = LocalServer(tmp_path / "m.gguf", command=[str(tmp_path / "absent")])
    with pytest.raises(LocalServerError, match="could not be run"):
        await server.start()
    await server.aclose()


async def test_closing_while_it_starts(tmp_path):
    server = local(tmp_path, "silent")
    starting = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0)
    pid = server.pid
    await server.aclose()
    with pytest.raises(LocalServerError, match="closed while it started"):
        await starting
    assert gone(pid)


async def test_cancelling_the_start_leaves_nothing(tmp_path):
    server = local(tmp_path, "silent")

    async def use():
        async with server:
            raise AssertionError("never ready")

    task = asyncio.create_task(use())
    while server.pid is None:
        await asyncio.sleep(0)
    pid = server.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(pid)
    assert server.state == "stopped"


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(antiphon.local, "_TERM_GRACE", 0.1)
    server = local(tmp_path, "stubborn")
    await server.start()
    pid = server.pid
    await server.aclose()
    assert gone(pid)


async def test_a_fault_in_the_supervisor_shows_as_failed(tmp_path):
    states = States()

    def listener(state):
        states(state)
        if state == "restarting":
            raise ZeroDivisionError

    server = local(tmp_path, on_state=listener)
    async with server:
        os.kill(server.pid, signal.SIGKILL)
        await states.reached("failed")
        assert server.state == "failed"


async def test_it_is_started_once(tmp_path):
    async with local(tmp_path) as server:
        with pytest.raises(LocalServerError, match="started before"):
            await server.start()
    with pytest.raises(LocalServerError, match="no address"):
        _ = local(tmp_path).base_url


async def test_the_log_is_private_and_emptied_at_start(tmp_path):
    async with local(tmp_path) as server:
        path = server.log_path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "sid True" in path.read_text()
        with path.open("a") as log:
            log.write("old words")
    async with local(tmp_path) as server:
        assert server.log_path == path
        assert "old words" not in path.read_text()


async def test_two_at_once_have_their_own_port_log_and_key(tmp_path):
    async with local(tmp_path) as one, local(tmp_path) as two:
        assert one.base_url != two.base_url
        assert one.log_path != two.log_path
        assert one.api_key != two.api_key
        assert await get(one, "/health") == await get(two, "/health") == 200


def test_a_log_that_cannot_be_had(tmp_path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    server = local(tmp_path)
    with pytest.raises(LocalServerError, match="log or a port"):
        asyncio.run(server.start())
    assert server.state == "failed"


def test_the_log_follows_no_link(tmp_path):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "llamacpp-1.log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        Place(tmp_path / "logs")
    assert (tmp_path / "target").read_text() == "precious"


def test_a_long_log_is_emptied_and_the_writer_goes_on_at_its_start(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphon.local_place._LOG_LIMIT", 10)
    place = Place(tmp_path)
    try:
        os.write(place.log_fd, b"0123456789")
        place.bound_log()
        assert place.log_path.read_bytes() == b"0123456789"
        os.write(place.log_fd, b"x")
        place.bound_log()
        os.write(place.log_fd, b"new")
        assert place.log_path.read_bytes() == b"new"
    finally:
        place.close()
        place.close()


def test_back_off_is_bounded_and_jittered():
    for crashes, longest in [(0, 0.5), (1, 1.0), (3, 4.0), (6, 30.0), (10_000, 30.0)]:
        drawn = {jittered(crashes) for _ in range(50)}
        assert all(longest / 2 <= delay <= longest for delay in drawn)
        assert len(drawn) > 1


@pytest.mark.parametrize("installed", [True, False])
def test_available_names_what_is_missing(monkeypatch, installed):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object() if installed else None)
    reason = available()
    assert (reason is None) == installed
    assert installed or ("xllamacpp" in reason and "\n" not in reason)


# --- slots_busy -----------------------------------------------------------------------------------


@asynccontextmanager
async def answering(handler):
    app = web.Application()
    app.router.add_get("/slots", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "busy"),
    [
        (200, '[{"id":0,"is_processing":true,"params":{}},{"id":1,"is_processing":false}]', 1),
        (200, "[]", 0),
        (200, '{"error":"no"}', None),
        (200, "<html>", None),
        (501, '{"error":{"message":"This server does not support slots endpoint."}}', None),
    ],
)
async def test_slots_busy(status, body, busy):
    keys = []

    async def slots(request):
        keys.append(request.headers.get("authorization"))
        return web.Response(status=status, text=body)

    async with answering(slots) as url, aiohttp.ClientSession() as session:
        assert await slots_busy(url, session) == busy
        assert await slots_busy(url + "/", session, api_key="k") == busy
    assert keys == [None, "Bearer k"]


async def test_slots_busy_of_a_server_that_is_not_there():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        async with aiohttp.ClientSession() as session:
            assert await slots_busy(f"http://127.0.0.1:{held.getsockname()[1]}/v1", session) is None


async def test_slots_busy_does_not_wait_for_a_silent_server():
    asked, release = asyncio.Event(), asyncio.Event()

    async def slots(_request):
        asked.set()
        await release.wait()
        return web.Response(text="[]")

    async with answering(slots) as url, aiohttp.ClientSession() as session:
        assert await slots_busy(url, session) is None
        assert asked.is_set()
        release.set()
