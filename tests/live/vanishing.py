"""A gateway and clients that vanish: everything stays open, and no packet of theirs arrives any more.

Runs in a network namespace of its own and prints what happened as one line of JSON. Needs Linux, root (or
what is needed to make namespaces) and iproute2. The clients are a process in a second namespace; a pair of
virtual devices joins the two, and the gateway's 127.0.0.1 is reached through it. They vanish by a route that
swallows what they send: their kernel hears the gateway and can answer nothing, not even a reset.

    unshare --net python vanishing.py FOLDER
    -> {"streaming": 30.4, "pinged": 31.0, "silent": 30.1, "queued": 30.1}

Each figure is how many seconds after that the client still held something.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from live_gateway import gateway, wait_until

GATEWAY, CLIENTS = "10.77.0.1/30", "10.77.0.2/30"
SLOTS = 3
# Soon: who waits for its first token is in a stream with pings long before it vanishes. And the clients come
# from another machine, as far as the gateway can tell.
EAGER = {
    "ANTIPHON_COMMIT_AFTER": "1",
    "ANTIPHON_PING_INTERVAL": "2",
    "ANTIPHON_ALLOW_ANONYMOUS": "true",
}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x "},"finish_reason":null}]}\n\n'
# What a client asks for, and whether its upstream says anything.
ASKED = {
    "streaming": (True, "talk"),
    "pinged": (True, "wait"),
    "silent": (False, "wait"),
    "queued": (False, "wait"),
}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def route_localnet(device: str) -> None:
    """Let 127.0.0.1 be on the other side of this device: the gateway listens nowhere else."""
    Path(f"/proc/sys/net/ipv4/conf/{device}/route_localnet").write_text("1")


# --- The upstream: talks for ever, or says nothing for ever ---------------------------------------


class Upstream:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            data = b""
            while not (b"\r\n\r\n" in data and (data.startswith(b"GET") or data.endswith(b"}"))):
                piece = peer.recv(65536)
                if not piece:
                    return
                data += piece
            if data.startswith(b"GET"):
                peer.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            elif b"talk" in data:
                peer.sendall(HEAD)
                try:
                    while True:
                        peer.sendall(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
                        time.sleep(0.05)
                except OSError:
                    return
            else:
                peer.recv(1)  # until the gateway goes


# --- The clients ----------------------------------------------------------------------------------


def clients() -> None:
    """The other process. Told to: `ask PORT`, then `vanish`."""
    _, port = sys.stdin.readline().split()
    talks = {}
    for name, (streams, prompt) in ASKED.items():
        talk = talks[name] = socket.create_connection(("127.0.0.1", int(port)), 10)
        body = json.dumps(
            {
                "model": name,
                "max_tokens": 9999,
                "stream": streams,
                "messages": [{"role": "user", "content": prompt}],
            }
        )
        talk.sendall(
            f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Claude-Code-Session-Id: {name}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        time.sleep(0.1)  # in this order: the last one waits for a slot
    for name, (streams, _) in ASKED.items():
        if streams:
            assert talks[name].recv(1000).startswith(b"HTTP/1.1 200")
    print("asked", flush=True)
    sys.stdin.readline()
    ip("route", "replace", "blackhole", "127.0.0.1/32")
    print("vanished", flush=True)
    sys.stdin.read()


# --- The stage ------------------------------------------------------------------------------------


def slots(base_url: str) -> dict:
    with urllib.request.urlopen(f"{base_url}/admin/slots", timeout=10) as answer:
        return json.load(answer)["upstream"]


def main(folder: Path) -> None:
    ip("link", "set", "lo", "up")
    os.environ |= EAGER
    options = ("--slots", str(SLOTS))
    with gateway(folder, Upstream().base_url, *options) as antiphon:
        others = subprocess.Popen(
            ["unshare", "--net", sys.executable, __file__, "clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            print(json.dumps(vanish(antiphon, others)))
        finally:
            others.kill()
            others.wait()
            others.stdin.close()
            others.stdout.close()


def vanish(antiphon, others: subprocess.Popen) -> dict[str, float]:
    namespace = Path(f"/proc/{others.pid}/ns/net")
    wait_until(lambda: namespace.readlink() != Path("/proc/self/ns/net").readlink(), "namespace")
    inside = ("nsenter", "--net", "--target", str(others.pid))
    ip("link", "add", "g0", "type", "veth", "peer", "name", "c0", "netns", str(others.pid))
    route_localnet("g0")
    ip("address", "add", GATEWAY, "dev", "g0")
    ip("link", "set", "g0", "up")
    for words in (
        ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/c0/route_localnet"],
        ["ip", "address", "add", CLIENTS, "dev", "c0"],
        ["ip", "link", "set", "c0", "up"],
        ["ip", "route", "add", "127.0.0.1/32", "dev", "c0", "src", CLIENTS.partition("/")[0]],
    ):
        subprocess.run([*inside, *words], check=True)

    print("ask", antiphon.base_url.rpartition(":")[2], file=others.stdin, flush=True)
    assert others.stdout.readline() == "asked\n"
    wait_until(
        lambda: (slots(antiphon.base_url)["held"], slots(antiphon.base_url)["waiting"]) == (3, 1), "queue"
    )
    print("vanish", file=others.stdin, flush=True)
    assert others.stdout.readline() == "vanished\n"
    began = time.monotonic()
    seen = dict.fromkeys(ASKED, 0.0)

    def all_gone() -> bool:
        here = present(slots(antiphon.base_url))
        seen.update(dict.fromkeys(here, round(time.monotonic() - began, 1)))
        return not here

    wait_until(all_gone, "free slots", 120)
    wait_until(lambda: len(antiphon.records()) == len(ASKED), "record of each")
    causes = [record["cause"] for record in antiphon.records()]
    assert causes == ["client"] * len(ASKED), causes
    return seen


def present(now: dict) -> set[str]:
    """Those that hold a slot or a place. Who waited has the slot that is free first: it is its turn."""
    return {lease["model"] for lease in now["leases"]} | ({"queued"} if now["waiting"] else set())


if __name__ == "__main__":
    if sys.argv[1] == "clients":
        clients()
    else:
        main(Path(sys.argv[1]))
