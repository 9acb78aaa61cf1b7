"""When is argument text one whole object?"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core import arguments
from antiphon.core.arguments import ArgumentScanner, is_object


def fed(*fragments):
    scan = ArgumentScanner()
    ends = [scan.feed(fragment) for fragment in fragments]
    return scan, ends


OBJECTS = [
    "{}",
    '{"a":1}',
    '{"a":"}"}',
    r'{"a":"\"}"}',
    r'{"a":"\\"}',
    r'{"a\u0022":{"b":[{}]}}',
    '{"a":[1,{"b":"]"}],"c":null}',
    r'{"a":"\ud83d"}',
    '{"a":123456789012345678901234567890,"b":1e999}',
    ' \n{"a":1}',
]


@pytest.mark.parametrize("text", OBJECTS)
def test_whole_at_its_last_bracket_however_cut(text):
    scan, ends = fed(text)
    assert scan.whole and ends == [len(text)] and scan.text == text.strip()
    assert scan.bare == (text == "{}")
    scan, ends = fed(*text)
    assert scan.whole and set(ends) == {1} and scan.text == text.strip()
    for at in range(len(text)):
        scan, _ = fed(text[:at])
        assert not scan.whole and not scan.hopeless and scan.blank == (not text[:at].strip())


def test_what_follows_is_not_taken():
    scan, ends = fed('{"a":', '1} {"b"')
    assert ends == [5, 2] and scan.whole and scan.text == '{"a":1}'


def test_from_the_middle_of_a_text():
    scan = ArgumentScanner()
    assert scan.feed('xx{"a":1}{', 2) == 9
    assert scan.text == '{"a":1}'


def test_an_escape_at_the_end_of_a_fragment():
    scan, _ = fed('{"a":"\\', "", '"}"}')
    assert scan.whole and json.loads(scan.text) == {"a": '"}'}


@pytest.mark.parametrize(
    "text",
    ["[1]", "1", '"{}"', "null", "x{}", "{]", '{"a" 1}', "{'a':1}", '{"a":NaN}', '{"a":\n"\n"}', "{,}"],
)
def test_what_can_never_become_an_object(text):
    scan, _ = fed(text)
    assert scan.hopeless and not scan.whole and scan.text is None
    assert scan.feed('{"a":1}') == 7
    assert not scan.whole


def test_spoilt():
    scan, _ = fed("{}")
    scan.spoil()
    assert scan.hopeless and not scan.whole and not scan.bare and scan.text is None


def test_beyond_what_is_kept_depth_alone_decides(monkeypatch):
    monkeypatch.setattr(arguments, "KEPT", 20)
    scan, _ = fed('{"a":"', "x" * 30, '"', "}")
    assert scan.whole and scan.text is None and not scan.bare and scan._kept == []


def test_small_fragments_of_a_large_text_stay_cheap():
    scan = ArgumentScanner()
    scan.feed('{"a":"')
    for _ in range(100_000):  # a copy of the whole for each of them would take minutes
        scan.feed("x")
    scan.feed('"}')
    assert scan.whole and len(scan.text) == 100_008


@given(st.text(alphabet='{}[]":\\,a1 \n', max_size=20), st.lists(st.integers(0, 20), max_size=4))
@settings(derandomize=True, deadline=None)
def test_cuts_do_not_matter(text, cuts):
    cuts = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    whole, scan, taken = ArgumentScanner(), ArgumentScanner(), 0
    end = whole.feed(text)
    for a, b in zip(cuts, cuts[1:], strict=False):
        taken += scan.feed(text[a:b])
        if scan.whole:
            break
    assert (scan.whole, scan.hopeless, scan.blank, scan.text) == (
        whole.whole,
        whole.hopeless,
        whole.blank,
        whole.text,
    )
    if whole.whole:
        assert taken == end
        assert isinstance(json.loads(whole.text), dict)


@pytest.mark.parametrize(
    "text, want",
    [
        ("{}", True),
        (' {"a":1} ', True),
        (r'{"a":"\ud83d"}', True),
        ('{"a":' + "9" * 5000 + "}", True),
        ("[]", False),
        ("", False),
        ("{", False),
        ('{"a":Infinity}', False),
        ('{"a":"\ud83d"}', True),
        ('{"a":' * 5000 + "1" + "}" * 5000, False),
    ],
)
def test_is_object(text, want):
    assert is_object(text) is want
