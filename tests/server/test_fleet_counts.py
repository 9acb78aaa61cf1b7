"""count_tokens with several targets: who is well is asked, and another where the first does not say."""

from __future__ import annotations

from server.fleet_house import FleetHouse
from server.harness import on_uvloop


async def counted(house: FleetHouse, answers: dict[str, int | None]) -> tuple[int, str, list[str]]:
    """Tokens, whether they are exact, and who was asked."""
    asked = []

    def counter(name: str):
        async def count(body: bytes) -> int | None:
            asked.append(name)
            return answers[name]

        return count

    for name in answers:
        house[name].counter.count = counter(name)
    client = await house.client()
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    client.send(
        b"POST /v1/messages/count_tokens HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    response = await client.response()
    how, by = response.headers["antiphon-token-count"], response.headers.get("antiphon-upstream")
    assert by == (asked[-1] if how == "exact" else None)
    assert "antiphon-queue-ms" not in response.headers  # nothing waits
    return response.json["input_tokens"], how, asked


@on_uvloop
async def test_another_one_counts_where_the_first_does_not_say() -> None:
    async with FleetHouse() as house:
        tokens, how, asked = await counted(house, {"a": None, "b": None})
        assert (how, sorted(asked)) == ("estimate", ["a", "b"])
        assert tokens > 0
        first, other = asked
        assert await counted(house, {first: None, other: 7}) == (7, "exact", [first, other])
        house[first].health.drain()
        assert await counted(house, {first: 9, other: 7}) == (7, "exact", [other])
        counts = house.gateway.metrics.counts
        assert counts.labels(other, "exact")._value.get() == 2  # not of the one that did not say


@on_uvloop
async def test_at_most_two_are_asked() -> None:
    async with FleetHouse(kinds={"a": {}, "b": {}, "c": {}}) as house:
        _, how, asked = await counted(house, dict.fromkeys("abc"))
        assert (how, len(asked)) == ("estimate", 2)
