"""Every streaming case of the public corpus, in process: the right answer, and the same however it was cut."""

import hashlib

import pytest

from pipeline import CORPUS, HERE, chunks_of, judge, play, run

PINNED = {
    "corpus.jsonl": "300827b3841d0631343438e60a6a817e021ef9f2236d6c0119478b45b465a08a",
    "judge.py": "4411da577cf0b518a5d40a4bbb22a89cc9e4c4c0df2c36502b398ea1e4cc07b6",
    "run.py": "7ad72c61bb9de253b7bec7f405c7ee0e9b78ccd276219cf8bf9d1d623f5c089c",
    "cancel_phases.py": "5921e8acf10b5c478a2fb448f9d8b18cd30b1eaa88489bd50dc204508242b4c6",
}
STREAMED = [
    case
    for case in CORPUS
    if case["trigger"]["kind"] in ("openai_sse", "raw_body")
    or (
        case["trigger"]["kind"] == "upstream_http"
        and case["trigger"]["status"] == 200
        and "{" in case["trigger"]["body"]
    )
]
CONTEXT = {"model": "a-model", "judge_model": True, "judge_request_id": False, "retry-after": None}


def verdict(case, result):
    expected = case["expected"]
    if "events" not in expected:
        assert result.fault is not None, "expected an HTTP error"
        assert result.fault.status == expected["http_status"], result.fault
        assert result.fault.kind == expected["body"]["error"]["type"]
        return
    assert result.fault is None, result.fault
    events = result.decoded
    assert judge.violations(events) == []
    assert run.compare_streams(expected["events"], events, CONTEXT) is None


def stops(case):
    return tuple(case["trigger"].get("request", {}).get("stop_sequences", ()))


@pytest.mark.parametrize("name", PINNED)
def test_the_pinned_files_are_untouched(name):
    assert hashlib.sha256((HERE / "conformance" / name).read_bytes()).hexdigest() == PINNED[name]


@pytest.mark.parametrize("case", STREAMED, ids=lambda case: case["id"])
def test_case(case):
    verdict(case, play(chunks_of(case), case["trigger"].get("end", "eof"), stop_sequences=stops(case)))


@pytest.mark.parametrize("case", STREAMED, ids=lambda case: case["id"])
def test_case_byte_by_byte_and_in_one_piece(case):
    whole = b"".join(chunks_of(case))
    end = case["trigger"].get("end", "eof")
    for cut in ([whole[i : i + 1] for i in range(len(whole))], [whole]):
        verdict(case, play(cut, end, stop_sequences=stops(case)))


def test_the_corpus_is_all_there():
    assert len(STREAMED) >= 80
