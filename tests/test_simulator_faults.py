"""Where a request's faults come from, and when they are due."""

import json

import pytest

from antiphon.simulator_faults import Faults, Struck, faults_for, strike
from antiphon.simulator_script import RequestError, read_request


def faults(text, standing=Faults(), **fields):
    request = {"messages": [{"role": "user", "content": text}], **fields}
    return faults_for(read_request(json.dumps(request).encode()), standing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hi", Faults()),
        ("hi [[stall_after=3]] there", Faults(stall_after=3)),
        ("[[status=503, delay_headers = 0.5]]", Faults(status=503, delay_headers=0.5)),
        ("[[cut_after=0]] [[delay_first_token=2]]", Faults(cut_after=0, delay_first_token=2.0)),
        ("a [[wiki]] link and [[ $x=1 ]] and [[x=1]]", Faults()),
    ],
)
def test_markers(text, expected):
    assert faults(text) == expected


def test_the_marker_wins_over_the_field_and_the_field_over_the_settings():
    standing = Faults(status=500, delay_headers=1.0, retry_after=9.0)
    found = faults("[[status=503]]", standing, simulate={"status": 429, "delay_headers": 2})
    assert found == Faults(status=503, delay_headers=2.0, retry_after=9.0)


def test_a_fault_can_be_switched_off_for_one_request():
    assert faults("hi", Faults(stall_after=3), simulate={"stall_after": None}) == Faults()


@pytest.mark.parametrize(
    ("text", "simulate"),
    [
        ("[[status=503,nonsense=1]]", {}),
        ("[[stall_after=1.5]]", {}),
        ("[[status=200]]", {}),
        ("hi", {"nonsense": 1}),
        ("hi", {"cut_after": -1}),
        ("hi", {"delay_headers": "soon"}),
    ],
)
def test_bad_faults_are_the_clients_error(text, simulate):
    with pytest.raises(RequestError):
        faults(text, simulate=simulate)


@pytest.mark.parametrize("name", ["stall_after", "cut_after", "reset_after", "error_after"])
def test_a_fault_strikes_after_its_frame_and_only_then(name):
    due = Faults(**{name: 2})
    strike(due, 0)
    strike(due, 1)
    with pytest.raises(Struck) as struck:
        strike(due, 2)
    assert struck.value.name == name
    strike(due, 3)
