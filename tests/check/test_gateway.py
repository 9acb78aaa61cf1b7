"""`check gateway`: a good gateway holds, and each fault of a broken one is found and named."""

import asyncio
import json
import subprocess
import sys

import pytest

from antiphon.check.corpus import load
from antiphon.check.gateway import Answer, CannotRun, Player, judge_http
from antiphon.check.stand_in import StandIn
from check.broken_gateway import BrokenGateway
from live_gateway import gateway
from pipeline import HERE
from pipeline import run as pinned

CASES = {case.id: case for case in load()}
# One or two of each kind and ending; the whole corpus is played by the conformance suite.
SOME = [
    "THK-01", "THK-11", "TOOL-01", "ENV-04", "ENV-05", "END-09", "END-12", "ERR-02", "ERR-11", "USE-01",
    "RQM-05", "RQM-07", "RQM-10", "RQT-02", "RQT-03", "RQT-09", "RQT-14", "XPT-06",
]  # fmt: skip


async def verdict(fault, case_id, **options):
    async with StandIn(0) as upstream, BrokenGateway(upstream.base_url, fault) as broken:
        return await Player(broken.url, upstream, **options).play(CASES[case_id])


async def test_antiphon_holds(tmp_path):
    ends = [case.id for case in CASES.values() if case.playable and case.trigger.get("end") == "reset"][:2]
    raw = [case.id for case in CASES.values() if case.kind == "raw_body"][:3]
    async with StandIn(0) as upstream:
        with gateway(tmp_path, upstream.base_url) as antiphon:
            player = Player(antiphon.base_url, upstream, prefix="/llm")
            await player.prepare()
            verdicts = [
                await player.play(CASES[case_id]) for case_id in [*SOME, *ends, *raw] if case_id in CASES
            ]
    assert [f"{v.id} {v.sentence}" for v in verdicts if v.outcome == "fails"] == []
    assert len(verdicts) >= 20


@pytest.mark.parametrize(
    ("fault", "case_id", "words"),
    [
        ("thinking as text", "THK-01", "'thinking_delta' inside a text block"),
        ("none", "THK-01", "blocks: text; expected thinking, text"),
        ("none", "FIN-09", "stop_reason is 'end_turn', expected 'refusal'"),
        ("none", "ERR-02", "not an Anthropic error body"),
        ("no event lines", "ENV-04", "no `event:` line"),
        ("no last blank line", "ENV-04", "no blank line follows the last frame"),
        ("cut off", "ENV-04", "the HTTP body was cut off"),
        ("content type", "ENV-04", "the content type is 'text/plain"),
        ("asks twice", "ENV-04", "asked 2 times"),
        ("upstream id", "ENV-05", "has no msg_ prefix"),
        ("none", "ERR-04", "HTTP 503, expected 529"),
        ("none", "ERR-11", "HTTP 500, expected 400"),
        ("forwards everything", "THK-18", "the upstream got thinking"),
        ("none", "RQT-02", "the upstream got tools = null"),
        ("first message only", "RQM-10", "the upstream did not get"),
        ("forwards headers", "XPT-06", "the upstream got the headers cookie, x-api-key"),
        ("goes nowhere", "RQM-07", "the upstream was asked nothing"),
        ("goes nowhere", "XPT-06", "the upstream was asked nothing"),
        ("none", "RQT-14", "HTTP 404, expected 200"),
    ],
)
async def test_a_fault_is_named(fault, case_id, words):
    found = await verdict(fault, case_id)
    assert found.outcome == "fails"
    assert words in found.sentence


async def test_a_cut_off_answer_must_not_look_finished():
    cut = next(
        case for case in CASES.values() if case.trigger.get("end") == "reset" and "events" in case.expected
    )
    found = await verdict("none", cut.id)
    assert found.outcome == "fails"


async def test_elsewhere_the_envelope_does_not_hide_worse_faults():
    assert (await verdict("upstream id", "ENV-04")).outcome == "holds"


async def test_a_gateway_that_hangs_is_a_verdict():
    found = await verdict("hangs", "ENV-04", timeout=0.2)
    assert found.sentence == "no end after 0.2 s"


async def test_nobody_there():
    async with StandIn(0) as upstream:
        unused = upstream.port
    async with StandIn(0) as upstream:
        with pytest.raises(CannotRun, match="no gateway answers"):
            await Player(f"http://127.0.0.1:{unused}", upstream).prepare()


async def test_another_upstream_is_not_judged():
    async with StandIn(0) as upstream, BrokenGateway(upstream.base_url, "goes nowhere") as elsewhere:
        with pytest.raises(CannotRun, match=f"did not ask http://127.0.0.1:{upstream.port}/v1"):
            await Player(elsewhere.url, upstream).prepare()


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/messages"])
async def test_the_address_may_be_given_in_any_length(path):
    async with StandIn(0) as upstream, BrokenGateway(upstream.base_url) as good:
        await Player(good.url + path, upstream, prefix="llm").prepare()
        assert len(upstream.requests) == 1


# --- bodies that are no stream, against the pinned runner ---

GOOD = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}, "request_id": "r1"}
JSON_TYPE = {"content-type": "application/json", "request-id": "r1", "retry-after": "7"}
ANSWERS = [
    (429, GOOD, JSON_TYPE),
    (400, GOOD, JSON_TYPE),
    (429, GOOD, {**JSON_TYPE, "content-type": "text/html"}),
    (429, GOOD, {**JSON_TYPE, "request-id": "r2"}),
    (429, GOOD, {**JSON_TYPE, "retry-after": "8"}),
    (429, {**GOOD, "type": "message"}, JSON_TYPE),
    (429, {**GOOD, "error": "text"}, JSON_TYPE),
    (429, {**GOOD, "error": {"type": "api_error", "message": "slow"}}, JSON_TYPE),
    (200, {"data": [{"type": "model", "id": "m", "display_name": "M", "created_at": "x"}], "has_more": False,
           "first_id": "m", "last_id": "m"}, JSON_TYPE),
    (200, {"data": [], "has_more": False, "first_id": "m", "last_id": "m"}, JSON_TYPE),
    (200, {"data": [{"id": "m"}]}, JSON_TYPE),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "headers"), ANSWERS)
@pytest.mark.parametrize("case_id", ["ERR-02", "ERR-04", "RQT-14"])
def test_agrees_with_the_pinned_runner(case_id, status, body, headers):
    case, text = CASES[case_id], json.dumps(body)
    context = {"model": "m", "judge_request_id": case_id == "ERR-02", "retry-after": "7"}
    theirs = pinned.http_verdict(case.expected, status, headers, text, context)
    answer = Answer(status, headers, text.encode(), True, 0.0)
    mine = judge_http(case.expected, answer, case.trigger, request_id=case_id == "ERR-02")
    assert (mine is None) == (theirs is None), (mine, theirs)


async def test_a_body_that_is_no_json():
    answer = Answer(429, JSON_TYPE, b"<html>", True, 0.0)
    assert "not JSON" in judge_http(CASES["ERR-02"].expected, answer, {})


async def test_one_odd_answer_does_not_end_the_run():
    async with StandIn(0) as upstream, BrokenGateway(upstream.base_url) as broken:
        player = Player(broken.url, upstream)
        verdicts = await asyncio.wait_for(_all(player), 60)
    assert len(verdicts) == 2
    assert [v.outcome for v in verdicts] == ["fails", "holds"]


async def _all(player):
    return [await player.play(CASES[case_id]) for case_id in ("ERR-11", "ENV-04")]


async def test_agrees_with_the_pinned_runner_case_by_case(tmp_path):
    """A gateway that is wrong in most cases and right in some: both runners say the same of each."""
    cases = [case for case in CASES.values() if case.playable and case.trigger.get("end") != "hang"][::2]
    upstream = StandIn(0)
    async with upstream, BrokenGateway(upstream.base_url) as broken:
        player = Player(broken.url, upstream)
        mine = {case.id: (await player.play(case)).outcome == "holds" for case in cases}
        await upstream.__aexit__(None, None, None)  # the port is the other runner's now
        file = tmp_path / "verdicts.json"
        only = [word for case in cases for word in ("--only", case.id)]
        await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                HERE / "conformance" / "run.py",
                "--gateway",
                broken.url,
                "--quiet",
                "--json",
                file,
            ]
            + ["--listen", str(upstream.port), *only],
            capture_output=True,
            timeout=60,
        )
    theirs = {verdict["id"]: verdict["verdict"] == "ok" for verdict in json.loads(file.read_text())}
    assert mine == theirs
    assert 10 < sum(mine.values()) < 30
