"""The simulator over real sockets: the wire shapes, every fault, every way to leave, start and end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys

import aiohttp
import pytest
from typer.testing import CliRunner

from antiphon.cli import app
from antiphon.simulator import Faults, Simulator, SimulatorSettings

pytestmark = pytest.mark.timeout(30)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z request=\d+ model=(reasoning|other|-) "
    r"stream=(true|false|-) tokens=\d+ (fault=\w+ )?outcome=\w+\n"
)


class Log:
    """A request log that can be waited for."""

    def __init__(self):
        self.lines = []
        self.written = asyncio.Event()

    def write(self, line):
        self.lines.append(line)

    def flush(self):
        self.written.set()

    async def line(self):
        async with asyncio.timeout(10):
            await self.written.wait()
        self.written.clear()
        return self.lines[-1]

    @property
    def outcomes(self):
        return [line.split("outcome=")[1].strip() for line in self.lines]


@contextlib.asynccontextmanager
async def simulating(token_interval=0.0, **settings):
    """A running simulator with `.log`, `.post(**body)` and `.connect(**body)`, whose clients it closes."""
    log = Log()
    simulator = Simulator(SimulatorSettings(token_interval=token_interval, **settings), log=log)
    await simulator.start()
    async with aiohttp.ClientSession() as session:

        async def post(**body):
            return await session.post(f"{simulator.base_url}/chat/completions", json=body)

        async def connect(**body):
            clients.append(await RawClient.post(simulator, **body))
            return clients[-1]

        clients = []
        simulator.log, simulator.post, simulator.connect, simulator.session = log, post, connect, session
        try:
            yield simulator
        finally:
            for client in clients:
                await client.aclose()
            await simulator.aclose()


def user(text):
    return [{"role": "user", "content": text}]


async def frames(response):
    """The data of every frame of a stream, as it stands on the wire."""
    text = await response.text()
    assert text.endswith("\n\n")
    found = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") for frame in found)
    return [frame.removeprefix("data: ") for frame in found]


async def chunks(response):
    *found, done = await frames(response)
    assert done == "[DONE]"
    return [json.loads(frame) for frame in found]


def deltas(found):
    return [chunk["choices"][0]["delta"] for chunk in found if chunk["choices"]]


def joined(found, key):
    return "".join(delta.get(key) or "" for delta in deltas(found))


def finish(found):
    return [
        c["choices"][0]["finish_reason"] for c in found if c["choices"] and c["choices"][0]["finish_reason"]
    ]


class RawClient:
    """A client that shows how a connection ends, and that can leave as it likes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def post(cls, simulator, *, small_buffer=False, **body):
        connection = socket.socket()
        if small_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", simulator.port))
        client = cls(*await asyncio.open_connection(sock=connection, limit=1024))
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        client.writer.write(head.encode() + data)
        return client

    async def frames(self, count):
        return [await self.reader.readuntil(b"\n\n") for _ in range(count)]

    def leave(self, how):
        if how == "RST":
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def aclose(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):  # the reset that the test was about
            await self.writer.wait_closed()


# --- Shapes on the wire --------------------------------------------------------------------------


async def test_hi_streams_reasoning_then_content_and_stops_within_64_tokens():
    async with simulating() as simulator:
        response = await simulator.post(model="reasoning", max_tokens=64, stream=True, messages=user("hi"))
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        found = await chunks(response)
        assert simulator.log.outcomes == ["completed"]
    assert deltas(found)[0] == {"role": "assistant", "content": ""}
    kinds = [next(iter(delta)) for delta in deltas(found)[1:-1]]
    assert kinds == sorted(kinds, reverse=True), "reasoning comes before content"
    assert set(kinds) == {"reasoning_content", "content"}
    assert len(kinds) < 64
    assert finish(found) == ["stop"]
    assert deltas(found)[-1] == {}
    assert all("usage" not in chunk for chunk in found)
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in found} == {"reasoning"}
    assert len({chunk["id"] for chunk in found}) == len({chunk["created"] for chunk in found}) == 1
    assert all(choice["index"] == 0 for chunk in found for choice in chunk["choices"])


async def test_without_streaming_the_same_words_come_at_once():
    async with simulating() as simulator:
        streamed = await chunks(await simulator.post(stream=True, messages=user("hi")))
        whole = await (await simulator.post(messages=user("hi"))).json()
        assert simulator.log.outcomes == ["completed", "completed"]
    [choice] = whole["choices"]
    assert whole["object"] == "chat.completion"
    assert choice["finish_reason"] == "stop"
    for key in ("content", "reasoning_content"):
        assert choice["message"][key] == joined(streamed, key) != ""
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


async def test_usage_comes_in_a_last_chunk_without_choices():
    async with simulating() as simulator:
        asked = {"include_usage": True}
        found = await chunks(await simulator.post(stream=True, stream_options=asked, messages=user("hi")))
    *others, last = found
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(others) - 2, "all but the role and the finish chunk"
    assert [chunk["usage"] for chunk in others] == [None] * len(others)


async def test_continuous_usage_counts_in_every_chunk():
    async with simulating() as simulator:
        asked = {"include_usage": True, "continuous_usage_stats": True}
        found = await chunks(await simulator.post(stream=True, stream_options=asked, messages=user("hi")))
    counted = [chunk["usage"]["completion_tokens"] for chunk in found]
    tokens = len(found) - 3
    assert counted == [*range(tokens + 1), tokens, tokens]
    assert len({chunk["usage"]["prompt_tokens"] for chunk in found}) == 1
    assert found[0]["usage"]["prompt_tokens"] > 0


async def test_a_tool_call_comes_in_fragments():
    async with simulating() as simulator:
        found = await chunks(await simulator.post(stream=True, tools=[WEATHER], messages=user("hi")))
        whole = await (await simulator.post(tools=[WEATHER], messages=user("hi"))).json()
    first, *rest = [delta["tool_calls"][0] for delta in deltas(found) if "tool_calls" in delta]
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert first["id"] and first["type"] == "function"
    assert len(rest) > 1
    assert all(set(fragment) == {"index", "function"} for fragment in rest)
    arguments = "".join(fragment["function"]["arguments"] for fragment in rest)
    assert json.loads(arguments) == {"city": "example"}
    assert finish(found) == ["tool_calls"]
    [call] = whole["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": arguments}
    assert call["id"] != first["id"], "ids are new in every answer"


async def test_parallel_calls_fold_into_two():
    async with simulating() as simulator:
        prompt = user('call one {"a": 1}\ncall two {"b": "x y"}')
        answer = await (await simulator.post(tools=[WEATHER], messages=prompt)).json()
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "one", "arguments": '{"a": 1}'},
        {"name": "two", "arguments": '{"b": "x y"}'},
    ]


async def test_other_models_are_answered_under_their_name_which_stays_out_of_the_log():
    async with simulating() as simulator:
        answer = await (await simulator.post(model="cancelled\nx", messages=user("hi"))).json()
        assert answer["model"] == "cancelled\nx"
        line = await simulator.log.line()
    assert LINE.fullmatch(line)
    assert "model=other" in line


async def test_health_and_models():
    async with simulating() as simulator:
        async with simulator.session.get(f"{simulator.base_url}/models") as response:
            listing = await response.json()
        async with simulator.session.get(simulator.base_url.replace("/v1", "/health")) as response:
            assert response.status == 200
        assert simulator.log.lines == []
    assert [model["id"] for model in listing["data"]] == ["reasoning"]


async def test_an_http_1_0_client_gets_a_body_that_ends_with_the_connection():
    async with simulating() as simulator:
        reader, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
        body = json.dumps({"stream": True, "messages": user("hi")}).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
        assert answer.endswith(b"data: [DONE]\n\n")
        writer.close()


async def test_tokens_are_paced():
    # Only a lower bound: 11 tokens of 10 ms each cannot be there in less than 100 ms.
    async with simulating(token_interval=0.010) as simulator:
        clock = asyncio.get_running_loop().time
        begin = clock()
        await chunks(await simulator.post(stream=True, max_tokens=11, messages=user("long")))
        assert clock() - begin >= 0.100


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "logged"),
    [
        ("POST", "/chat/completions", b"{", 400, True),
        ("POST", "/chat/completions", b"\xff", 400, True),
        ("POST", "/chat/completions", b"[" * 100_000, 400, True),
        ("POST", "/chat/completions", b'{"messages":[]}', 400, True),
        ("POST", "/chat/completions", b'{"messages":[{"role":"user"}],"max_tokens":0}', 400, True),
        ("POST", "/chat/completions", b'{"messages":[{"role":"user"}],"simulate":{"nonsense":1}}', 400, True),
        ("POST", "/chat/completions", b'{"messages":[{"role":"user"}],"simulate":{"status":200}}', 400, True),
        ("POST", "/chat/completions", b'{"messages":"%s"}' % (b"x" * 300_000), 413, True),
        ("GET", "/chat/completions", None, 405, False),
        ("POST", "/completions", b"{}", 404, False),
    ],
    ids=["json", "utf8", "deep", "empty", "type", "fault-name", "fault-range", "large", "method", "path"],
)
async def test_errors_have_openais_shape(method, path, body, status, logged, monkeypatch):
    monkeypatch.setattr("antiphon.simulator._MAX_BODY", 200_000)
    async with simulating() as simulator:
        async with simulator.session.request(method, simulator.base_url + path, data=body) as response:
            error = (await response.json())["error"]
        assert response.status == status
        assert simulator.log.outcomes == ["rejected"] * logged
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"] == status


# --- Faults --------------------------------------------------------------------------------------


async def test_delay_headers_sends_nothing_until_then():
    async with simulating() as simulator:
        client = await simulator.connect(stream=True, messages=user("hi [[delay_headers=0.2]]"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        assert (await client.reader.readline()).startswith(b"HTTP/1.1 200")
        client.leave("FIN")


async def test_delay_first_token_sends_the_headers_and_waits():
    async with simulating() as simulator:
        client = await simulator.connect(stream=True, messages=user("hi [[delay_first_token=60]]"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        client.leave("FIN")


@pytest.mark.parametrize("count", [0, 3])
async def test_stall_keeps_the_connection_open_and_silent(count):
    async with simulating() as simulator:
        client = await simulator.connect(stream=True, messages=user(f"hi [[stall_after={count}]]"))
        await client.reader.readuntil(b"\r\n\r\n")
        await client.frames(count)
        if count:
            assert await client.reader.readexactly(2) == b"\r\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        assert simulator.log.lines == []
        client.leave("FIN")
        assert (await simulator.log.line()).endswith("fault=stall_after outcome=cancelled\n")


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_cut_closes_without_the_chunk_that_ends_the_message(count):
    async with simulating() as simulator:
        client = await simulator.connect(stream=True, messages=user(f"hi [[cut_after={count}]]"))
        rest = await client.reader.read(65536)
        while more := await client.reader.read(65536):
            rest += more
        assert rest.count(b"data: ") == count
        assert not rest.endswith(b"0\r\n\r\n")
        assert (await simulator.log.line()).endswith("fault=cut_after outcome=fault\n")
        client.leave("FIN")


@pytest.mark.parametrize("count", [0, 3])
async def test_reset_resets(count):
    async with simulating() as simulator:
        client = await simulator.connect(stream=True, messages=user(f"hi [[reset_after={count}]]"))
        with pytest.raises(ConnectionResetError):
            while await client.reader.read(65536):
                pass
        assert (await simulator.log.line()).endswith("fault=reset_after outcome=fault\n")
        client.leave("FIN")


async def test_error_object_in_the_stream_then_done():
    async with simulating(faults=Faults(error_after=3)) as simulator:
        found = await frames(await simulator.post(stream=True, messages=user("hi")))
        assert simulator.log.outcomes == ["fault"]
    assert len(found) == 5
    assert json.loads(found[3])["error"]["code"] == 500
    assert found[4] == "[DONE]"


async def test_status_with_retry_after():
    async with simulating(faults=Faults(status=429, retry_after=7)) as simulator:
        response = await simulator.post(stream=True, messages=user("hi"))
        assert response.status == 429
        assert response.headers["retry-after"] == "7"
        assert (await response.json())["error"]["type"] == "rate_limit_error"
        assert simulator.log.lines[0].endswith("fault=status outcome=fault\n")


@pytest.mark.parametrize("name", ["cut_after", "reset_after"])
async def test_without_streaming_a_cut_connection_carries_nothing(name):
    async with simulating() as simulator:
        with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
            await simulator.post(messages=user("hi"), simulate={name: 3})
        assert simulator.log.outcomes == ["fault"]


async def test_without_streaming_the_error_is_http_500():
    async with simulating() as simulator:
        response = await simulator.post(messages=user("hi"), simulate={"error_after": 3})
        assert response.status == 500
        assert "error" in await response.json()


async def test_a_fault_that_is_never_due_changes_nothing():
    async with simulating() as simulator:
        assert await chunks(await simulator.post(stream=True, messages=user("hi [[cut_after=999]]")))
        assert simulator.log.outcomes == ["completed"]


# --- A client that leaves ------------------------------------------------------------------------

LEAVE = {
    "before_headers": ({"stream": True, "messages": user("hi [[delay_headers=60]]")}, 0),
    "prefill": ({"stream": True, "messages": user("hi [[delay_first_token=60]]")}, 0),
    "reasoning": ({"stream": True, "messages": user("long")}, 2),
    "content": ({"stream": True, "messages": user("long")}, 12),
    "tool": ({"stream": True, "tools": [WEATHER], "messages": user(f'call f {{"a": "{"x" * 999}"}}')}, 14),
    "stalled_upstream": ({"stream": True, "messages": user("hi [[stall_after=2]]")}, 2),
    "nonstream": ({"messages": user("long")}, 0),
    "nonstream_stalled": ({"messages": user("hi [[stall_after=2]]")}, 0),
}


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("phase", LEAVE)
async def test_leaving_is_logged_at_once_and_once(phase, how):
    body, count = LEAVE[phase]
    async with simulating(token_interval=0.005) as simulator:
        client = await simulator.connect(**body)
        await client.frames(count)
        client.leave(how)
        line = await simulator.log.line()
        assert LINE.fullmatch(line)
        assert line.endswith("outcome=cancelled\n")
        assert simulator._answering == set()
    assert simulator.log.outcomes == ["cancelled"]


async def test_a_client_that_never_reads_and_leaves_is_cancelled():
    async with simulating() as simulator:
        body = {"model": "m" * 4000, "stream": True, "messages": user("long")}
        client = await simulator.connect(small_buffer=True, **body)
        client.writer.transport.pause_reading()
        async with asyncio.timeout(20):
            while not any(c.transport.get_write_buffer_size() for c in simulator._runner.server.connections):
                await asyncio.sleep(0.01)
        client.leave("RST")
        assert (await simulator.log.line()).endswith("outcome=cancelled\n")


async def test_leaving_in_the_middle_of_the_request_body():
    async with simulating() as simulator:
        _, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        await writer.drain()
        writer.close()
        assert (await simulator.log.line()).endswith("model=- stream=- tokens=0 outcome=cancelled\n")


async def test_leaving_after_the_answer_is_no_cancellation():
    async with simulating() as simulator:
        client = await simulator.connect(stream=True, messages=user("hi"))
        while await client.reader.readline() != b"data: [DONE]\n":
            pass
        client.leave("RST")
        # By the end of another request the simulator has seen the reset.
        await chunks(await simulator.post(stream=True, messages=user("hi")))
    assert simulator.log.outcomes == ["completed", "completed"]


# --- Start, log file and end ---------------------------------------------------------------------


async def test_the_log_file_is_emptied_and_gets_one_line_for_each_request(tmp_path):
    path = tmp_path / "requests.log"
    path.write_text("cancelled\n")
    async with simulating(log_path=path) as simulator:
        await chunks(await simulator.post(stream=True, messages=user("a secret word")))
        lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 1
    assert LINE.fullmatch(lines[0])


async def test_a_link_for_a_log_stops_the_start_and_nothing_else(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    simulator = Simulator(SimulatorSettings(log_path=tmp_path / "link"))
    with pytest.raises(OSError, match="it is a symbolic link"):
        await simulator.start()
    await simulator.aclose()


async def test_a_taken_port_is_an_oserror_and_leaves_no_log_open(tmp_path):
    async with simulating() as first:
        before = set(os.listdir("/proc/self/fd"))
        second = Simulator(SimulatorSettings(port=first.port, log_path=tmp_path / "log"))
        with pytest.raises(OSError, match="in use"):
            await second.start()
        assert set(os.listdir("/proc/self/fd")) == before


async def test_a_log_that_cannot_be_written_does_not_end_an_answer(caplog):
    class Full(Log):
        def write(self, line):
            raise OSError(28, "No space left on device")

    async with simulating() as simulator:
        simulator._log = Full()
        assert await chunks(await simulator.post(stream=True, messages=user("hi")))
    assert "No space left on device" in caplog.text


async def test_aclose_ends_every_answer_and_leaves_nothing():
    loop = asyncio.get_running_loop()
    unexpected = []
    loop.set_exception_handler(lambda _, context: unexpected.append(context))
    descriptors, tasks = set(os.listdir("/proc/self/fd")), asyncio.all_tasks()
    simulator = Simulator(SimulatorSettings(), log=Log())
    await simulator.start()
    streaming = await RawClient.post(simulator, stream=True, messages=user("long"))
    await streaming.frames(3)
    waiting = await RawClient.post(simulator, messages=user("hi [[delay_headers=60]]"))
    idle = RawClient(*await asyncio.open_connection("127.0.0.1", simulator.port))
    async with asyncio.timeout(10):
        while len(simulator._answering) < 2:
            await asyncio.sleep(0.001)
        await simulator.aclose()
    await simulator.aclose()
    assert simulator._log.outcomes == ["stopped", "stopped"]
    for client in (streaming, waiting, idle):
        await client.aclose()
    assert asyncio.all_tasks() == tasks
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert unexpected == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_serves_until_a_signal_and_exits_cleanly(number, tmp_path):
    code = (
        "from pathlib import Path; from antiphon.simulator import SimulatorSettings, run;"
        f"run(SimulatorSettings(log_path=Path({str(tmp_path / 'log')!r})))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            greeting += line
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert re.search(r"at http://127\.0\.0\.1:[1-9]\d*/v1, its log is ", greeting)
    assert "curl -N http://127.0.0.1:" in greeting
    assert (process.returncode, out, err) == (0, "", "")


def test_a_taken_port_and_a_log_that_cannot_be_written_are_told_in_plain_words(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(app, ["simulate", "--port", str(port)])
    assert result.exit_code == 2
    assert result.stderr == f"antiphon: --port {port}: Address already in use; choose another with --port\n"
    result = CliRunner().invoke(app, ["simulate", "--port", "0", "--log", str(tmp_path / "no" / "log")])
    assert result.exit_code == 2
    assert "cannot write the log" in result.stderr
    assert "--port" not in result.stderr
