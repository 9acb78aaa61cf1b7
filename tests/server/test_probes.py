"""The prober: who is asked when, how each answer is read, and what a server's return sets off."""

import asyncio
import socket

import pytest
from aiohttp import ClientSession, ConnectionTimeoutError, web
from structlog.testing import capture_logs

from antiphon.server.health import Health, Rules
from antiphon.server.probes import Prober, Watched, probe_url


class Server:
    """An inference server that answers probes as it is told, and remembers them."""

    def __init__(self):
        self.status, self.body, self.asked, self.silent = 200, '{"data":[]}', [], False
        self.arrived = asyncio.Event()

    async def __aenter__(self):
        async def handler(request):
            self.asked.append((request.path, request.headers.get("authorization")))
            self.arrived.set()
            if self.silent:
                await asyncio.Event().wait()
            if self.status == 0:
                request.transport.abort()
            return web.Response(text=self.body, status=self.status, headers={"location": "/elsewhere"})

        app = web.Application()
        app.router.add_get("/{tail:.*}", handler)
        self.runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *exc):
        await self.runner.cleanup()


class Watch:
    """A prober over one or more servers, on a clock of the test's."""

    def __init__(self, session, **options):
        self.now = 0.0
        self.targets = []
        self.returned = []
        self.prober = Prober(
            lambda: self.targets,
            session,
            clock=lambda: self.now,
            returned=self.returned.append,
            random=lambda: 0.5,  # no jitter
            **options,
        )

    def add(self, url, name="u", working=False, **more):
        health = Health(Rules(consecutive=2), random=lambda: 1.0)
        self.targets.append(Watched(name, url, health, lambda: working, **more))
        return health

    async def round(self, at):
        self.now = at
        await self.prober.round()


@pytest.fixture
async def session():
    async with ClientSession() as session:
        yield session


@pytest.fixture
async def server():
    async with Server() as server:
        yield server


@pytest.fixture
async def watch(session, server):
    watch = Watch(session)
    watch.health = watch.add(probe_url(server.base_url, "models"), headers={"authorization": "Bearer secret"})
    await watch.round(0.0)  # seen for the first time
    return watch


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("base_url", "route", "url"),
    [
        ("http://h:1/v1", "models", "http://h:1/v1/models"),
        ("http://h:1/v1/", "health", "http://h:1/health"),
        ("http://h:1/llm/v1", "health", "http://h:1/llm/health"),
        ("http://h:1", "health", "http://h:1/health"),
    ],
)
def test_where_a_server_is_asked(base_url, route, url):
    assert probe_url(base_url, route) == url


async def test_an_idle_server_is_asked_once_an_interval(server, watch):
    for at, count in ((0.0, 0), (9.9, 0), (10.0, 1), (19.9, 1), (20.0, 2)):
        await watch.round(at)
        assert len(server.asked) == count
    assert server.asked[0] == ("/v1/models", "Bearer secret")
    assert watch.health.state(20.0) == "closed"
    assert watch.returned == []


async def test_one_of_which_requests_tell_is_not_asked(server, watch):
    watch.health.succeeded(5.0, 0.1, watch.health.began(4.0))
    await watch.round(10.0)
    assert server.asked == []
    await watch.round(15.1)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [200, 204, 307, 401, 403, 404, 405, 429])
async def test_a_server_that_answers_anything_is_there(server, watch, status):
    server.status = status
    watch.health.failed("connect", 0.0)
    await watch.round(2.0)
    assert len(server.asked) == 1  # a redirect is an answer, and is not followed
    assert not watch.health.gone
    assert watch.returned == ["u"]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', "loading"),
        (503, "no healthy upstream", "status"),
        (503, '{"error":{"message":"server busy"}}', "status"),
        (500, "", "status"),
        (502, "<html><h1>502 Bad Gateway</h1></html>", "status"),
        (0, "", "reset"),
    ],
)
async def test_each_bad_answer_is_a_trouble(server, watch, status, body, kind):
    server.status, server.body = status, body
    await watch.round(10.0)
    seen = watch.health.statistics(10.0)
    assert seen.failures == {kind: 1}
    assert seen.gone
    assert seen.waiting == (kind == "loading")


async def test_nobody_listens(session):
    watch = Watch(session)
    health = watch.add(f"http://127.0.0.1:{closed_port()}/v1/models")
    await watch.round(0.0)
    await watch.round(10.0)
    assert health.statistics(10.0).failures == {"connect": 1}


async def test_tls_towards_a_server_without_it_is_a_trouble_of_tls(session, server):
    watch = Watch(session)
    health = watch.add(probe_url(server.base_url.replace("http:", "https:"), "models"))
    await watch.round(0.0)
    await watch.round(10.0)
    assert health.statistics(10.0).failures == {"tls": 1}


@pytest.mark.parametrize(("working", "failures"), [(False, {"timeout": 1}), (True, {})])
async def test_a_late_answer_says_something_only_of_an_idle_server(session, server, working, failures):
    server.silent = True
    watch = Watch(session, limit=0.05)
    health = watch.add(probe_url(server.base_url, "models"), working=working)
    await watch.round(0.0)
    await watch.round(10.0)
    assert len(server.asked) == 1
    assert health.statistics(10.0).failures == failures


class Unreachable:
    """A session whose connections take too long: no network of a test's machine does that reliably."""

    def __init__(self):
        self.timeout = None

    def get(self, url, *, timeout, **options):
        self.timeout = timeout
        raise ConnectionTimeoutError


async def test_a_late_connection_is_a_server_that_is_gone_even_if_it_worked_a_moment_ago():
    session = Unreachable()
    watch = Watch(session, limit=2.0)
    health = watch.add("http://192.0.2.1/v1/models", working=True)
    await watch.round(0.0)
    await watch.round(10.0)
    assert health.statistics(10.0).failures == {"connect": 1}
    assert session.timeout.sock_connect < session.timeout.total == 2.0


async def test_the_story_of_a_restart(server, watch):
    """Gone, loading, there again: it is asked more often meanwhile, and its return is told once."""
    health = watch.health
    server.status = 0
    with capture_logs() as logs:
        for at in (10.0, 12.0):
            await watch.round(at)
        assert health.state(12.0) == "open"
        server.status = 503
        server.body = '{"error":{"message":"Loading model","type":"unavailable_error"}}'
        await watch.round(14.0)
        assert health.waiting(14.0)
        assert watch.returned == []
        server.status = 200
        await watch.round(16.0)
    assert watch.returned == ["u"]
    assert health.state(16.0) == "half_open"
    assert health.admits(16.0)
    assert [(line["event"], line["upstream"]) for line in logs] == [
        ("upstream_lost", "u"),
        ("upstream_returned", "u"),
    ]
    health.succeeded(16.5, 0.1, health.began(16.0))
    server.asked.clear()
    await watch.round(18.0)  # well again: there is no hurry
    assert server.asked == []
    assert watch.returned == ["u"]


async def test_a_server_that_requests_found_gone_is_asked_soon(server, watch):
    watch.health.failed("connect", 1.0, watch.health.began(1.0))
    await watch.round(1.9)
    assert server.asked == []
    await watch.round(2.0)
    assert watch.returned == ["u"]


@pytest.mark.parametrize("kind", ["reset", "eof"])
async def test_a_server_whose_connection_broke_is_asked_at_once(server, watch, kind):
    """It may have died, and be back before the next probe would have seen that."""
    watch.health.failed(kind, 1.0, watch.health.began(1.0))
    await watch.round(1.1)
    assert len(server.asked) == 1
    assert watch.returned == []  # it is there: nothing was wrong with it
    await watch.round(1.2)
    assert len(server.asked) == 1


async def test_a_server_that_died_and_came_back_within_an_interval_has_returned(server, watch):
    watch.health.failed("reset", 1.0, watch.health.began(1.0))
    server.status = 0
    await watch.round(1.1)
    server.status = 200
    await watch.round(3.1)
    assert watch.returned == ["u"]


async def test_a_server_whose_circuit_is_open_is_asked_but_not_let_in_for_being_there(server, watch):
    for _ in range(2):
        watch.health.failed("status", 1.9, watch.health.began(1.9))
    await watch.round(2.0)
    assert len(server.asked) == 1
    assert watch.health.state(2.0) == "open"
    assert watch.returned == []


async def test_a_drained_server_is_watched_too(server, watch):
    watch.health.drain()
    server.status = 0
    await watch.round(10.0)
    server.status = 200
    await watch.round(12.0)
    assert watch.returned == ["u"]
    assert not watch.health.admits(12.0)


async def test_a_reload_takes_effect_in_the_next_round(session, server, watch):
    await watch.round(10.0)
    watch.targets.clear()
    await watch.round(20.0)
    assert len(server.asked) == 1
    watch.add(probe_url(server.base_url, "health"), name="v")
    await watch.round(30.0)
    await watch.round(40.0)
    assert server.asked[1:] == [("/health", None)]


async def test_the_jitter_keeps_gateways_out_of_step(session, server):
    for drawn, early, due in ((0.0, 7.9, 8.0), (1.0, 11.9, 12.0)):
        prober = Prober(lambda: [one], session, clock=lambda: now, random=lambda drawn=drawn: drawn)
        one = Watched("u", "http://127.0.0.1:9/", Health(), lambda: False)
        now = 0.0
        await prober.round()
        assert not prober.due(one, early)
        assert prober.due(one, due)


async def test_at_most_so_many_at_once(session):
    async with Server() as server:
        server.silent = True
        watch = Watch(session, concurrent=2, limit=30.0)
        for number in range(5):
            watch.add(probe_url(server.base_url, "models"), name=f"u{number}")
        await watch.round(0.0)
        watch.now = 10.0
        task = asyncio.get_running_loop().create_task(watch.prober.round())
        async with asyncio.timeout(10):
            while len(server.asked) < 2:
                await server.arrived.wait()
                server.arrived.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(server.asked) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_bug_in_who_is_told_ends_nothing(session, server):
    watch = Watch(session)
    told, quoted = [], "secret words"

    def broken(name):
        told.append(name)
        raise RuntimeError(quoted)

    watch.prober._returned = broken
    for name in ("u", "v"):
        watch.add(probe_url(server.base_url, "models"), name=name)
        watch.targets[-1].health.failed("connect", 0.0)
    await watch.round(0.0)
    with capture_logs() as logs:
        await watch.round(2.0)
    assert sorted(told) == ["u", "v"]
    assert [line["error"] for line in logs if line["event"] == "internal"] == ["RuntimeError"] * 2
    assert "secret words" not in str(logs)


async def test_it_runs_by_itself_survives_a_broken_list_and_stops_in_the_middle_of_a_probe(session, server):
    server.silent = True
    calls = 0
    watch = Watch(session, interval=0.02, recovery=0.02, limit=30.0)
    watch.add(probe_url(server.base_url, "models"))

    def targets():
        nonlocal calls
        calls += 1
        watch.now += 1.0
        if calls == 1:
            raise RuntimeError
        return watch.targets

    watch.prober._targets = targets
    with capture_logs() as logs:
        watch.prober.start()
        watch.prober.start()
        async with asyncio.timeout(10):
            await server.arrived.wait()
        await watch.prober.aclose()
        await watch.prober.aclose()
    assert [line["error"] for line in logs] == ["RuntimeError"]
    assert watch.targets[0].health.statistics(watch.now).failures == {}
    assert not [task for task in asyncio.all_tasks() if "Prober" in repr(task.get_coro())]


def test_keys_are_not_shown():
    assert "secret" not in repr(Watched("u", "http://h/v1", Health(), lambda: False, "secret"))
