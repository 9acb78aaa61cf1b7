"""One table of what must go and one of what must stay; then laws over anything."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.scrub import RULES, legible, scrub

REMOVED = [
    # (text, what it becomes)
    ("connect to 10.0.0.3 failed", "connect to [address] failed"),
    ("connect to 10.0.0.3:8000 failed", "connect to [address] failed"),
    ("('192.168.1.20', 8000)", "('[address]', 8000)"),
    ("from 10.1.0.0/16.", "from [address]."),
    ("at 255.255.255.255, then", "at [address], then"),
    ("listen on ::1 only", "listen on [address] only"),
    ("peer fe80::1ff:fe23:4567:890a%eth0 left", "peer [address] left"),
    ("peer [2001:db8::1]:8443 left", "peer [address] left"),
    ("peer 2001:0db8:85a3:0000:0000:8a2e:0370:7334.", "peer [address]."),
    ("mapped ::ffff:10.0.0.1", "mapped [address]"),
    ("Cannot connect to host vllm-7:8000 ssl:default", "Cannot connect to host [address] ssl:default"),
    ("dial localhost:11434", "dial [address]"),
    ("dial localhost:80", "dial [address]"),
    ("my_vllm:8000 refused", "[address] refused"),
    ("llm-7.cluster.local did not answer", "[address] did not answer"),
    ("gpu01.example.com:443/v1/x refused", "[address] refused"),
    ("Please see platform.openai.com.", "Please see [address]."),
    ("node ip-10-0-0-17.eu-west-1.compute gone", "node [address] gone"),
    ("HTTPConnectionPool(host='vllm', port=8000)", "HTTPConnectionPool(host='[address]', port=8000)"),
    ("Could not resolve host: vllm", "Could not resolve host: [address]"),
    ("write to ops@example.com", "write to [address]"),
    ("GET http://10.0.0.3:8000/v1/models failed", "GET [url] failed"),
    ("see https://platform.openai.com/account/api-keys.", "see [url]."),
    ("(https://u:p@h.example/x?api_key=abc#f)", "([url])"),
    ("url='http://[::1]:8080/v1'", "url='[url]'"),
    ("redis://:pass@cache:6379/0 is down", "[url] is down"),
    ("open file:///etc/passwd", "open [url]"),
    ("/v1/chat?key=AIzabc&x=1", "/v1/chat?key=[key]&x=1"),
    ("image data:image/png;base64,iVBORw0KGgoAAAANSUhEUg== is bad", "image [data] is bad"),
    ("Incorrect API key provided: sk-proj-****abcd.", "Incorrect API key provided: [key]"),
    ("key sk-ant-api03-abcDEF_123-xyz rejected", "key [key] rejected"),
    ("key sk-or-v1-0123456789abcdef rejected", "key [key] rejected"),
    ("Authorization: Bearer abc.def", "Authorization: Bearer [key]"),
    ("with Bearer zzzzzzzzzzzzzzzzzzzz", "with Bearer [key]"),
    ("with basic dXNlcjpwYXNz", "with basic [key]"),
    ("x-api-key: hunter2", "x-api-key: [key]"),
    ('{"api_key": "hunter"}', '{"api_key": "[key]"}'),
    ("api_key=hunter", "api_key=[key]"),
    ("Your api key: ****3f2a is invalid", "Your api key: [key] is invalid"),
    ("password='correct-horse'", "password='[key]'"),
    ("client_secret = topsecret", "client_secret = [key]"),
    ("HF_TOKEN=hf-0123456789", "HF_TOKEN=[key]"),
    ("access_token: 0f9e8d", "access_token: [key]"),
    ("gsk_abcdefghijklmnopqrst", "[key]"),
    ("hf_AbCdEfGhIjKlMnOpQrSt", "[key]"),
    ("xai-AbCdEfGhIjKlMnOpQrStUvWx", "[key]"),
    ("nvapi-AbCdEfGhIjKlMnOpQrStUvWx", "[key]"),
    ("ghp_abcdefghijklmnop1234", "[key]"),
    ("AIzaSyA-abcdefghijklmnopqrstuvwxyz0123", "[key]"),
    ("AKIAIOSFODNN7EXAMPLE", "[key]"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "[key]"),
    ("d41d8cd98f00b204e9800998ecf8427e", "[key]"),
    ("deadbeef" * 4, "[key]"),
    ("secret 550e8400-e29b-41d4-a716-446655440000", "secret [key]"),
    ("value 8Jx2mQ9vLr4TzK7wYb3NcP6sHd5Fg1Ae", "value [key]"),
    ("value aB3/x9Kq+Zr7Lm2Wp5Ty8Ug1Hc4Vd6=", "value [key]"),
    ("value q7f2k9d4m1x8z3b6n5v0w2r7t4", "value [key]"),
    ("Traceback: /home/ada/vllm/engine.py line 3", "Traceback: [path] line 3"),
    ('File "/usr/lib/python3.11/site-packages/vllm/x.py", line 3', 'File "[path]", line 3'),
    ("cannot open /home/ada/qwen now", "cannot open [path] now"),
    ("cannot open /qwen/template.jinja:12", "cannot open [path]:12"),
    ("cannot open /weights/qwen/model-00001.safetensors", "cannot open [path]"),
    ("cannot open ~/.cache/hf/token", "cannot open [path]"),
    (r"cannot open C:\Users\ada\model.gguf now", "cannot open [path] now"),
    (r"cannot open \\nas\share\model.gguf", "cannot open [path]"),
    ("a\x00b\x07c\x7f", "abc"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("one\r\n\ttwo\u2028three", "one two three"),
    ("left\u202eright\u200b\ufeff", "leftright"),
    ("half \ud83d surrogate", "half \ufffd surrogate"),
    ("sk-abc\x00def\u200bghijkl", "[key]"),
    ("0.0.0.0ghp_0000000000000000", "[address][key]"),
]

KEPT = [
    "glm-5.3-fp8",
    "org/model",
    "The model `Qwen/Qwen3-235B-A22B-Instruct-2507-FP8` does not exist.",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B-GGUF",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5-NVFP4",
    "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M",
    "claude-sonnet-4-5-20250929",
    "accounts/fireworks/models/kimi-k2p5",
    "llama3.2:1b and qwen2.5:72b and gpt-oss:20b and gpt-oss:120",
    "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    "messages.3.content: Input should be a valid string",
    "messages.1.content.0.image.source.data: too large",
    "tools.0.input_schema.properties.id.in.is",
    "This model's maximum context length is 131,072 tokens (131072).",
    "on 2026-10-21 at 12:30:45, 2026-10-21T12:30:45.123Z, Tue, 21 Oct 2026 12:30:45 GMT",
    "a ratio of 12:3000, 50%, 1e-5, 3.14, -7, 0x1f, #12",
    "max_tokens:4096 context_length:131072 line:1234 tokens: 5000",
    "max_tokens=4096, top_p=0.9, seed=1234567890",
    "engine.py:123: ValueError",
    "std::vector<int> c10::Error [1:2] aa:bb:cc:dd:ee:ff",
    "version v0.6.3.1 of vLLM 0.10.2, CUDA 12.4, driver 535.104.05.01",
    "Invalid token: <|im_start|>, Unexpected token: function_call, eos_token: 151645",
    "Missing API key: please provide one. Basic authentication required. Bearer token expected.",
    "Invalid credentials: please check them",
    "tool_call_id chatcmpl-tool-1f0e9d8c7b6a5f4e3d2c1b0a9f8e7d6c not found",
    "toolu_01A09q90qw90lq917835lq9 and call_AbCd1234EfGh5678IjKl9012",
    "POST /v1/chat/completions and /api/chat and /props",
    "and/or, text/event-stream, </think>, a / b, n/a",
    "ContextWindowExceededError, exceed_context_size_error, BadRequestError(400)",
    "'max_tokens' or 'max_completion_tokens' is too large: 200000",
    'Ünïcödé, 日本語, 🙂, don\'t "quote" me',
    "i.e. this, e.g. that... (etc.)",
    "99999999999999999999 and 1234567890123456789012345",
    "sk-learn, task-specific, desk-bound",
    "See the docs: section 4.",
]


@pytest.mark.parametrize(("text", "expected"), REMOVED)
def test_removed(text, expected):
    assert scrub(text) == expected


@pytest.mark.parametrize("text", KEPT)
def test_kept(text):
    assert scrub(text) == text


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_every_rule_has_a_row(rule):
    without = [other for other in RULES if other is not rule]

    def passes(text, rules):
        text = legible(text)
        for each in rules:
            text = each.pattern.sub(each.replace, text)
        return text

    assert any(passes(text, RULES) != passes(text, without) for text, _ in REMOVED)


def test_limit():
    assert scrub("z" * 50, limit=10) == "z" * 9 + "…"
    assert scrub("z" * 10, limit=10) == "z" * 10
    assert len(scrub("word " * 10_000)) == 2000


def test_a_key_at_the_cut_does_not_survive_in_part():
    # URLs shrink, so what stood at the place where a long text is cut comes into the part that is shown.
    for pad in range(0, 60, 3):
        assert "sk-" not in scrub(
            ("http://h/" + "p" * 90 + " ") * 79 + "x" * pad + " sk-" + "z" * 200 + " end"
        )


def test_legible_removes_no_secret_and_keeps_a_line_a_line():
    assert legible("GET /v1/x\r\nsk-abcdefghijkl\x00") == "GET /v1/x sk-abcdefghijkl"
    assert legible("x" * 20, limit=5) == "xxxx…"


FRAGMENTS = st.lists(
    st.sampled_from([text for text, _ in REMOVED] + KEPT + [*" .,:;/='\"[](){}<>@-_\\\n"]), max_size=8
).map("".join)


@settings(deadline=None)
@given(st.one_of(st.text(st.characters(), max_size=300), FRAGMENTS))
def test_anything_gives_one_legible_line_and_a_second_pass_changes_nothing(text):
    once = scrub(text)
    once.encode("utf-8")
    assert once == once.strip() and not any(c < " " or c == "\x7f" for c in once)
    assert scrub(once) == once


SECRETS = st.one_of(
    st.text(string.ascii_letters + string.digits, min_size=12, max_size=60).map(lambda s: "sk-" + s),
    st.text(string.ascii_letters + string.digits, min_size=12, max_size=60).map(lambda s: "api_key=" + s),
    st.text("0123456789abcdef", min_size=32, max_size=64),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str).filter(lambda s: s != "::"),
    st.from_regex(r"[a-z]{3,10}-[0-9]{1,2}\.internal:[1-9][0-9]{3}", fullmatch=True),
    st.from_regex(
        r"https?://[a-z]{3,10}(\.[a-z]{2,6}){0,2}(:[0-9]{2,4})?/[a-z0-9/]{0,20}[a-z]", fullmatch=True
    ),
)
AROUND = st.sampled_from([" ", "'", '"', "(", ")", ",", ", ", "\n", "`", "; ", "\t", "<", ">"])


@settings(deadline=None)
@given(
    st.text(string.ascii_lowercase + " .,'", max_size=60),
    AROUND,
    SECRETS,
    AROUND,
    st.text(string.ascii_lowercase + " .,'", max_size=60),
)
def test_a_planted_secret_is_gone(before, left, secret, right, after):
    assert secret.removeprefix("api_key=") not in scrub(before + left + secret + right + after)


@pytest.mark.parametrize(
    "hostile",
    [
        "a." * 4000,
        "/a" * 4000,
        "/-" * 4000,
        "a:" * 4000,
        "1." * 4000,
        "::" * 4000,
        "api key" * 1100,
        "@" * 8000,
        "a@" * 4000,
        "\\" * 8000,
        "http://" * 1100,
        "-" * 8000,
        "a-" * 4000,
        "api_key" + " " * 7900,
        "data:" * 1600,
        "?a" * 4000,
        "a" * 8000,
    ],
)
@pytest.mark.timeout(20)
def test_no_text_takes_long(hostile):
    # Quadratic work on 8,000 characters is seconds for each call, linear work is a few milliseconds.
    for _ in range(20):
        scrub(hostile)
