"""The way to an upstream: base URLs, addresses, happy eyeballs, TLS, socket options."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from antiphon.server import upstream, upstream_dial
from antiphon.server.upstream import UpstreamPool
from antiphon.server.upstream_dial import parse_base_url
from server.raw_server import Peer, Recorder, leftovers, on_both_loops, pool_for, raw_server, sockets, until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


# --- Base URLs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "authority", "target"),
    [
        ("http://h", "h", "/x"),
        ("http://H:80/", "h", "/x"),
        ("https://h:443/v1", "h", "/v1/x"),
        ("http://h:443/v1/", "h:443", "/v1/x"),
        ("https://h:80/api/v1//", "h:80", "/api/v1/x"),
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000", "/v1/x"),
        ("http://[::1]:8000/v1", "[::1]:8000", "/v1/x"),
        ("http://[::1]/v1", "[::1]", "/v1/x"),
        ("http://bücher.example/v1", "xn--bcher-kva.example", "/v1/x"),
        ("http://h/a%20b/ü", "h", "/a%20b/%C3%BC/x"),
    ],
)
def test_base_urls(url: str, authority: str, target: str) -> None:
    origin = parse_base_url(url)
    assert (origin.authority, origin.target("/x")) == (authority, target)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "http://"),
        ("h:8000/v1", "http://"),
        ("ftp://h/v1", "http://"),
        ("http://", "host"),
        ("http:///v1", "host"),
        ("http://user:secret@h/v1", "user name"),
        ("http://secret@h/v1", "user name"),
        ("http://h/v1#secret", "fragment"),
        ("http://h:secret/v1", "port"),
        ("http://h:70000/v1", "port"),
        ("http://h:0/v1", "port"),
        ("http://[secret/v1", "host"),
        ("http://h/v1\r\nX: secret", "white space"),
        ("http://h /v1", "white space"),
        ("http://" + "ü" * 80, "name"),
    ],
)
def test_base_urls_that_are_refused_in_words_that_do_not_repeat_them(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        UpstreamPool(url)
    assert str(caught.value).startswith("base URL: ")
    assert "secret" not in str(caught.value)


# --- Addresses ------------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def lost(base_url: str, **options: Any) -> Recorder:
    pool = UpstreamPool(base_url, **options)
    heard = Recorder()
    pool.post("/chat/completions", b"{}", heard)
    await heard.over()
    await pool.aclose()
    assert heard.heard == ["lost"]
    assert heard.failure and heard.failure.before_response
    return heard


@on_both_loops
async def test_connection_refused() -> None:
    heard = await lost(f"http://127.0.0.1:{unused_port()}/v1")
    assert heard.failure and (heard.failure.kind, heard.failure.message) == ("connect", "connection refused")


@on_both_loops
async def test_every_address_refused() -> None:
    heard = await lost(f"http://localhost:{unused_port()}/v1")
    assert heard.failure and heard.failure.kind == "connect"
    assert "localhost" not in heard.failure.message
    assert "127" not in heard.failure.message


@on_both_loops
async def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, f"{host} is not known")

    monkeypatch.setattr(upstream_dial, "resolve", resolve)
    heard = await lost("http://nowhere.invalid/v1")
    assert heard.failure and heard.failure.kind == "connect"
    assert heard.failure.message == "the host name could not be resolved"


@on_both_loops
async def test_a_mistake_in_here_ends_the_call_and_reaches_the_loops_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = LookupError("a mistake")

    async def dial(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(upstream, "dial", dial)
    heard = await lost("http://127.0.0.1:1/v1")
    assert heard.failure and heard.failure.kind == "connect"
    assert leftovers.take() == [error]


@on_both_loops
async def test_localhost_is_reached_where_only_ipv4_listens() -> None:
    async with (
        raw_server() as server,
        pool_for(server, base_url=f"http://localhost:{server.port}/v1") as pool,
    ):
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        request = await (await server.accept()).answer(OK)
        await heard.over()
        assert heard.body == b"ok"
        assert request.headers["host"] == f"localhost:{server.port}"


class BlackHole:
    """A port on 127.0.0.1 that never answers: its queue of connections is full, a SYN is dropped."""

    def __enter__(self) -> Self:
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(0)
        self.port = self.listening.getsockname()[1]
        self.fillers = [socket.socket() for _ in range(4)]
        for filler in self.fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.listening, *self.fillers):
            each.close()


def address(port: int) -> Any:
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))


@pytest.mark.parametrize("first", ["silent", "refused"])
@on_both_loops
async def test_a_second_address_is_tried_when_the_first_is_dead(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BlackHole() as hole:
        async with raw_server() as server, pool_for(server, base_url="http://two.example/v1") as pool:
            ports = [hole.port if first == "silent" else unused_port(), server.port]

            async def resolve(host: str, port: int) -> Any:
                assert (host, port) == ("two.example", 80)
                return [address(each) for each in ports]

            monkeypatch.setattr(upstream_dial, "resolve", resolve)
            monkeypatch.setattr(upstream_dial, "HAPPY_EYEBALLS_DELAY", 0.01)
            heard = Recorder()
            pool.post("/chat/completions", b"{}", heard)
            await (await server.accept()).answer(OK)
            await heard.over()
            assert heard.body == b"ok"
            assert pool.statistics().idle == 1


@pytest.mark.parametrize("addresses", [1, 3])
@pytest.mark.parametrize("how", ["abort", "release", "aclose"])
@on_both_loops
async def test_giving_up_while_connecting_leaves_nothing(
    addresses: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BlackHole() as hole:

        async def resolve(host: str, port: int) -> Any:
            return [address(hole.port)] * addresses

        monkeypatch.setattr(upstream_dial, "resolve", resolve)
        monkeypatch.setattr(upstream_dial, "HAPPY_EYEBALLS_DELAY", 0.001)
        before = sockets()
        pool = UpstreamPool("http://silent.example/v1")
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        await until(lambda: len(sockets() - before) == addresses)
        assert pool.statistics().connecting == 1
        if how == "aclose":
            await pool.aclose()
        else:
            getattr(call, how)()
            assert pool.statistics().connecting == 0
        await until(lambda: not sockets() - before)
        await pool.aclose()
        assert call.closed
        assert heard.heard == []


@on_both_loops
async def test_giving_up_while_the_name_is_resolved_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def resolve(host: str, port: int) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(upstream_dial, "resolve", resolve)
    pool = UpstreamPool("http://slow.example/v1")
    call = pool.post("/chat/completions", b"{}", Recorder())
    await asked.wait()
    call.pause_reading()
    call.resume_reading()
    call.abort()
    await pool.aclose()


@on_both_loops
async def test_socket_options() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await heard.hears("open")
        (connection,) = pool._connections
        assert connection._transport
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


@on_both_loops
async def test_a_server_that_speaks_before_it_is_asked_is_not_listened_to() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        peer.send(OK)  # before or after the request has arrived here: the answer counts only if asked for
        await heard.over()
        assert call.closed
        assert heard.heard in (["open", "head", "body", "end", "read"], ["lost"])


# --- TLS ------------------------------------------------------------------------------------------


@dataclass
class Authority:
    """A throw-away certificate authority and a certificate of its for `localhost` and 127.0.0.1."""

    ca_file: str
    server: ssl.SSLContext
    names: list[str | None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (Path(folder) / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=test authority",
        "-days",
        "2",
    )
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=test")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "server.pem", "-days", "2", "-extfile", "names"),
    )
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.sni_callback = lambda _, name, __: names.append(name)
    return Authority(str(folder / "ca.pem"), context, names)


@pytest.mark.parametrize(("host", "sni"), [("localhost", "localhost"), ("127.0.0.1", None)])
@on_both_loops
async def test_tls_with_a_custom_authority(host: str, sni: str | None, authority: Authority) -> None:
    authority.names.clear()
    async with raw_server(ssl=authority.server) as server:
        url = f"https://{host}:{server.port}/v1"
        async with pool_for(server, base_url=url, ca_file=authority.ca_file) as pool:
            peer: Peer | None = None
            for _ in range(2):  # the second time on the same connection
                heard = Recorder()
                pool.post("/chat/completions", b"x" * 300_000, heard)
                peer = peer or await server.accept()
                request = await peer.answer(OK)
                await heard.over()
                assert heard.heard == ["open", "head", "body", "end", "read"]
                assert (len(request.body), request.headers["host"]) == (300_000, f"{host}:{server.port}")
            assert server.accepted == 1
            assert authority.names == [sni]
            assert peer and peer.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@on_both_loops
async def test_a_certificate_of_nobody_we_know_is_refused(authority: Authority) -> None:
    async with raw_server(ssl=authority.server) as server:
        heard = await lost(server.base_url)
        assert heard.failure and heard.failure.kind == "tls"
        assert heard.failure.message.startswith("certificate verification failed")
        assert server.accepted == 0


@on_both_loops
async def test_a_certificate_for_another_host_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(ssl=authority.server) as server:

        async def resolve(host: str, port: int) -> Any:
            return [address(server.port)]

        monkeypatch.setattr(upstream_dial, "resolve", resolve)
        heard = await lost("https://other.example/v1", ca_file=authority.ca_file)
        assert heard.failure and heard.failure.kind == "tls"
        assert "not valid for this host" in heard.failure.message
        assert "other.example" not in heard.failure.message


@on_both_loops
async def test_verification_can_be_switched_off(authority: Authority) -> None:
    async with raw_server(ssl=authority.server) as server, pool_for(server, verify=False) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await (await server.accept()).answer(OK)
        await heard.over()
        assert heard.body == b"ok"


@on_both_loops
async def test_a_server_without_tls_is_a_tls_failure() -> None:
    async with raw_server() as server:
        waiting = asyncio.ensure_future(lost(server.base_url.replace("http://", "https://")))
        (await server.accept()).send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        heard = await waiting
        assert heard.failure and heard.failure.kind == "tls"


@on_both_loops
async def test_a_connection_lost_during_the_handshake_is_a_tls_failure() -> None:
    async with raw_server() as server:
        waiting = asyncio.ensure_future(lost(server.base_url.replace("http://", "https://")))
        (await server.accept()).finish()
        heard = await waiting
        assert heard.failure and heard.failure.kind == "tls"


@pytest.mark.parametrize("how", ["abort", "aclose"])
@on_both_loops
async def test_giving_up_during_the_handshake_closes_the_socket(how: str) -> None:
    async with raw_server() as server:
        pool = UpstreamPool(server.base_url.replace("http://", "https://"))
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        assert await peer.reader.read(1)  # the ClientHello
        await pool.aclose() if how == "aclose" else call.abort()
        await peer.gone()
        await pool.aclose()
        assert heard.heard == []


@on_both_loops
async def test_abort_does_not_wait_for_a_tls_farewell(authority: Authority) -> None:
    async with (
        raw_server(ssl=authority.server) as server,
        pool_for(server, ca_file=authority.ca_file) as pool,
    ):
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await heard.hears("body")
        call.pause_reading()
        call.abort()
        await peer.gone()
        assert heard.heard == ["open", "head", "body", "read"]


@on_both_loops
async def test_a_body_without_length_over_tls(authority: Authority) -> None:
    async with (
        raw_server(ssl=authority.server) as server,
        pool_for(server, ca_file=authority.ca_file) as pool,
    ):
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await heard.hears("body")
        peer.finish()
        await heard.over()
        assert heard.heard[-2:] == ["end", "read"]


def test_a_ca_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ca_file"):
        UpstreamPool("https://h", ca_file=str(tmp_path / "none"))
    (tmp_path / "rubbish").write_text("rubbish")
    with pytest.raises(ValueError, match="ca_file"):
        UpstreamPool("https://h", ca_file=str(tmp_path / "rubbish"))


def test_a_query_of_the_base_url_goes_with_every_request_and_is_not_shown():
    origin = parse_base_url("http://h/v1?api-version=2024-10-21&x=a%20b")
    assert origin.target("/chat/completions") == "/v1/chat/completions?api-version=2024-10-21&x=a%20b"
    assert str(origin) == "http://h/v1"
    assert parse_base_url("http://h/v1?").target("/m") == "/v1/m"
