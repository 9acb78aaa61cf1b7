"""The shapes in which servers say that they failed, each read into the same few fields."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.complaint import is_error, read_body, read_error

CHOICES = [{"index": 0, "delta": {"content": "x"}}]

ERRORS = [
    {"error": {"message": "m"}},
    {"error": "m"},
    {"error": ["m"]},
    {"error": True, "message": "m"},
    {"error": {}},
    {"error": ""},
    {"error": {"code": 502}, "choices": CHOICES},  # OpenRouter
    {"type": "error", "error": {"type": "overloaded_error"}},
    {"type": "error", "message": "m"},
    {"object": "error", "message": "m"},
    {"detail": "m"},
    {"detail": [{"msg": "m"}]},
    {"errors": ["m"]},
    {"error_code": 17, "error_msg": "m"},
    {"error_msg": "m"},
    {"code": 400, "message": "m"},
    {"code": "InvalidApiKey", "message": "m"},
    {"status": "failed", "msg": "m"},
    {"choices": None, "detail": "m"},
    {"base_resp": {"status_code": 1002, "status_msg": "m"}, "choices": None},
]

NO_ERRORS = [
    {},
    {"choices": CHOICES},
    {"choices": CHOICES, "error": None},
    {"choices": CHOICES, "error": {}},
    {"choices": CHOICES, "error": ""},
    {"choices": CHOICES, "error": False},
    {"choices": CHOICES, "code": 200, "message": "ok"},
    {"choices": CHOICES, "detail": "m", "code": 7, "message": "x"},
    {"choices": CHOICES, "base_resp": {"status_code": 0, "status_msg": ""}},
    {"choices": [], "usage": {"prompt_tokens": 1}},
    {"error": None},
    {"error": False},
    {"detail": None},
    {"code": 0, "message": "ok"},
    {"code": "200", "msg": "x"},
    {"status": "success", "message": "x"},
    {"message": {"role": "assistant", "content": ""}, "status": 1},
    {"type": "ping"},
    {"object": "chat.completion.chunk", "choices": []},
]


@pytest.mark.parametrize("obj", ERRORS, ids=json.dumps)
def test_is_error(obj):
    assert is_error(obj)


@pytest.mark.parametrize("obj", NO_ERRORS, ids=json.dumps)
def test_is_no_error(obj):
    assert not is_error(obj)


DEEP_TEXT = '{"error":' * 30_000 + '"x"' + "}" * 30_000

SHAPES = [
    # (server, decoded body, text, words, codes)
    ("OpenAI", {"error": {"message": "m", "type": "tokens", "param": None, "code": "rate_limit_exceeded"}}, "m", ["rate_limit_exceeded", "tokens"], []),
    ("vLLM", {"error": {"message": "m", "type": "NotFoundError", "code": 404}}, "m", ["NotFoundError"], [404]),
    ("vLLM", {"error": "Unauthorized"}, "Unauthorized", [], []),
    ("SGLang", {"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, "m", ["BadRequestError"], [400]),
    ("any", {"error": {"message": "m", "code": "400"}}, "m", [], [400]),
    ("any", {"error": 500}, "", [], [500]),
    ("any", {"error": {"message": ["a", "b"]}}, "a: b", [], []),
    ("Nest", {"statusCode": 400, "message": ["a must be b"], "error": "Bad Request"}, "Bad Request: a must be b", [], [400]),
    ("FastAPI", {"detail": "Not Found"}, "Not Found", [], []),
    ("FastAPI", {"detail": {"error": {"message": "m", "code": 429}}}, "m", [], [429]),
    ("FastAPI", {"detail": [{"loc": ["body", "messages", 1, "role"], "msg": "Input should be 'user'", "type": "literal_error"}]}, "messages.1.role: Input should be 'user'", ["literal_error"], []),
    ("FastAPI", {"detail": [{"loc": ["body", "a"], "msg": "x"}, {"loc": ["query", "b"], "msg": "y"}, {"msg": "z"}]}, "a: x; query.b: y; z", [], []),
    ("Gemini", [{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}], "m", ["RESOURCE_EXHAUSTED"], [429]),
    ("Gemini", {"error": {"code": 400, "message": "m", "details": [{"reason": "API_KEY_INVALID", "message": "quiet"}]}}, "m", ["API_KEY_INVALID"], [400]),
    ("OpenRouter", {"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": '{"error":{"message":"slow down","type":"rate_limit_exceeded"}}'}}}, "Provider returned error: slow down", ["rate_limit_exceeded"], [429]),
    ("OpenRouter", {"id": "x", "choices": CHOICES, "error": {"code": 502, "message": "m"}}, "m", [], [502]),
    ("DashScope", {"code": "InvalidApiKey", "message": "m", "request_id": "r"}, "m", ["InvalidApiKey"], []),
    ("MiniMax", {"base_resp": {"status_code": 1002, "status_msg": "m"}}, "m", ["1002"], []),
    ("Baidu", {"error_code": 17, "error_msg": "m"}, "m", ["17"], []),
    ("Anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "m", ["error", "overloaded_error"], []),
    ("a proxy", {"error": {"message": '{"error":{"message":"inner","code":503}}'}}, "inner", [], [503]),
    ("a proxy", {"error": "Bad Request", "message": "Bad Request: no model"}, "Bad Request: no model", [], []),
    ("odd", {"error": {"message": None, "type": 7.5, "code": True}}, "", [], []),
    ("odd", {"error": {"message": {"message": "m"}}}, "m", [], []),
    ("odd", {"code": 10**40, "type": "x" * 1000, "message": "m"}, "m", [], []),
]  # fmt: skip


@pytest.mark.parametrize(("server", "value", "text", "words", "codes"), SHAPES)
def test_shape(server, value, text, words, codes):
    for complaint in (read_error(value), read_body(json.dumps(value).encode())):
        assert (complaint.text, complaint.words, complaint.codes) == (text, words, codes)
        assert complaint.form == "JSON"


def test_fields_of_their_own():
    complaint = read_error(
        {"error": {"message": "m", "n_prompt_tokens": 6031, "n_ctx": 4096, "param": "model"}}
    )
    assert (complaint.prompt, complaint.window, complaint.subject) == (6031, 4096, "model")
    complaint = read_error({"error": {"message": "m", "n_prompt_tokens": "6031", "n_ctx": True}})
    assert (complaint.prompt, complaint.window) == (None, None)
    assert read_error({"error": {"retry_after": 3}}).retry_after == "3"
    assert read_error({"error": {"details": [{"retryDelay": "34.5s"}]}}).retry_after == "35"


FORMS = [
    # (body, text, form, is_error)
    (b"", "", "an empty body", False),
    (b" \r\n", "", "an empty body", False),
    (b'\xef\xbb\xbf{"error":"m"}', "m", "JSON", True),
    (b"Internal Server Error", "Internal Server Error", "plain text", False),
    (b"<html><head><title>502 Bad Gateway</title></head></html>", "", 'an HTML page ("502 Bad Gateway")', False),
    (b"<!DOCTYPE html><p>hi", "", "an HTML page", False),
    (b"caf\xe9 closed for today", "caf\ufffd closed for today", "plain text", False),
    (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\xff\xfe\xfd", "", "an unreadable body", False),
    (b'"just a string"', "just a string", "JSON", False),
    (b'["a"]', "a", "JSON", False),
    (b'[{"error":{"message":"m"}}]', "m", "JSON", True),
    (b'{"choices":[]}', "", "JSON", False),
    (b'data: {"error":"m"}\n\ndata: [DONE]\n\n', "m", "JSON", True),
    (b': hi\n\nevent: error\ndata: {"error":"m"}\n\n', "m", "JSON", True),
    (b'{"error":{"message":"cut \\"off\\"","code":429,"x":', "", "broken JSON", False),
    (b"{not json}", "", "broken JSON", False),
    (b"[INST] oops", "[INST] oops", "plain text", False),
    (DEEP_TEXT.encode(), "", "broken JSON", False),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text", "form", "error"), FORMS)
def test_form(body, text, form, error):
    complaint = read_body(body)
    assert complaint.form == form
    assert complaint.is_error is error
    if form != "broken JSON":
        assert complaint.text == text


def test_json_that_is_longer_than_what_is_read():
    echoed = {"messages": [{"role": "user", "content": "prompt is too long, code 402 " * 10_000}]}
    body = json.dumps(
        {
            "detail": [
                {
                    "type": "missing",
                    "loc": ["body", "messages", 0, "role"],
                    "msg": "Field required",
                    "input": echoed,
                }
            ]
        }
    )
    complaint = read_body(body.encode())
    assert complaint.text == "messages.0.role: Field required"
    assert complaint.form == "broken JSON"
    cut = read_body(b'{"error":{"message":"cut \\"off\\"","code":429,"x":')
    assert cut.text == 'cut "off"'
    for tail in (b"", b"\\", b"\\u", b"\\u00e"):
        assert read_body(b'{"error":{"code":429,"message":"no end' + tail).text == "no end"


def test_lists_and_nesting_are_bounded():
    assert read_error({"errors": [f"e{n}" for n in range(1000)]}).text.count("e") == 8
    deep = {"message": "m"}
    for _ in range(10_000):
        deep = {"error": deep}
    assert read_error(deep).text == ""


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["error", "message", "msg", "detail", "code", "type", "status", "loc", "metadata", "raw", "details", "errors", "base_resp", "status_code", "choices", "param", "n_ctx", "retry_after", "object"]),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@settings(deadline=None)
@given(JSON)
def test_any_json_is_read(value):
    complaint = read_error(value)
    assert isinstance(complaint.text, str)
    assert all(isinstance(word, str) for word in complaint.words)
    assert all(400 <= code <= 599 for code in complaint.codes)
    if isinstance(value, dict):
        assert complaint.is_error == is_error(value)
    assert read_body(json.dumps(value).encode()).form in {"JSON", "plain text"}
