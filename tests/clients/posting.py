"""A request by hand: any headers, in any number, where every SDK has its own idea of them.

Owns one POST on a connection of its own, and the reading of what comes back. It asserts nothing.

    answer = post(base_url, {"model": "m", ...}, [("anthropic-beta", "a"), ("anthropic-beta", "b")])
    answer.status, answer.headers["request-id"], answer.events
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message

JSON = ("content-type", "application/json")


@dataclass(frozen=True)
class Posted:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict]:
        """The data of each event of a stream, in order."""
        lines = self.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def post(
    base_url: str,
    body: dict,
    headers: Iterable[tuple[str, str]] = (),
    *,
    path: str = "/v1/messages",
) -> Posted:
    """The answer to `body`, sent with these headers in this order."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=60)
    encoded = json.dumps(body).encode()
    try:
        connection.putrequest("POST", path)
        for name, value in (JSON, ("content-length", str(len(encoded))), *headers):
            connection.putheader(name, value)
        connection.endheaders(encoded)
        answer = connection.getresponse()
        return Posted(answer.status, answer.headers, answer.read())
    finally:
        connection.close()
