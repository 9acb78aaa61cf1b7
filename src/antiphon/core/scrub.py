"""Texts made fit for a client: no address, URL, path or key of anybody's, no control character.

Owns the one table of what is taken out of a text that somebody else wrote. Never raises, never takes
more than linear time, and `scrub(scrub(x)) == scrub(x)`. It knows nothing of errors or protocols.

    scrub("connect to http://10.0.0.3:8000/v1 failed for sk-abc123def456")
    -> "connect to [url] failed for [key]"

The rules prefer a wrongly removed word to a leaked secret, but model names, field paths, numbers,
dates and ids of requests and calls stay: they are what makes a message useful.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv6Address
from itertools import pairwise
from typing import Final, NamedTuple

ADDRESS: Final = "[address]"
DATA: Final = "[data]"
KEY: Final = "[key]"
PATH: Final = "[path]"
URL: Final = "[url]"

# Left out without a trace: ANSI sequences, control and zero-width characters, direction overrides.
# Nothing takes their place, so that a key cannot hide by being split.
_INVISIBLE = re.compile(
    "\x1b\\[[0-9;]*[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s+")

# What was glued to an address (`10.0.0.1ghp_...`) is seen once the address is gone. Two rounds do for
# every sane text, the second of which changes nothing.
_ROUNDS = 8


def legible(text: str, *, limit: int = 2000) -> str:
    """`text` on one line, without control characters or lone surrogates, at most `limit` characters.

    It removes no secret: it is for what the client itself sent (a path, a field's name).
    """
    text = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _INVISIBLE.sub("", text))
    return _cut(_SPACE.sub(" ", text).strip(), limit)


def scrub(text: str, *, limit: int = 2000) -> str:
    """`text` as `legible` makes it, and without addresses, URLs, server paths, keys and tokens.

    `limit` is in characters; a longer text ends in an ellipsis. The result is empty only if nothing
    visible was in the text.
    """
    if len(text) > 4 * limit:
        # Work is bounded; cut between words, so that half of a key is not taken for a word.
        text = text[: 4 * limit]
        text = text[: text.rfind(" ")] if " " in text[-1000:] else text
    text = legible(text, limit=4 * limit)
    for _ in range(_ROUNDS):
        before = text
        for rule in RULES:
            text = rule.pattern.sub(rule.replace, text)
        if text == before:
            break
    return _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


# --- What decides about a match -----------------------------------------------------------------

_WORD = re.compile(r"[A-Z]?[a-z_]{1,15}[.!?]?")


def _after_label(match: re.Match[str]) -> str:
    """`api_key=...` goes whatever the value is, `api key: ...` unless the value is an ordinary word."""
    label, value = match["label"], match["value"]
    if not label.rstrip().endswith(("=", '"', "'")) and _WORD.fullmatch(value):
        return match[0]
    return label + KEY


def _after_token(match: re.Match[str]) -> str:
    """The word `token` means a piece of text more often than a secret: short values and numbers stay."""
    value = match["value"]
    return match[0] if len(value) < 8 or value.isdigit() or _WORD.fullmatch(value) else match["label"] + KEY


_PUBLIC_ID = re.compile(r"(?:chatcmpl|cmpl|call|toolu|fc|msg|req|resp|gen|run|trace|functions?)[-_.]")
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
_UPPER, _LOWER, _DIGIT = range(3)


def _opaque(match: re.Match[str]) -> str:
    """A long run is a secret if it changes between upper, lower and digits as often as chance does.

    Chance changes class at 60 % of the places in base64, at 40 % in base 36. Names are made of words:
    `Llama-4-Maverick-17B-128E-Instruct-FP8` changes at a third, and has no long piece that does more.
    """
    run = match[0]
    if _PUBLIC_ID.match(run):
        return run
    pieces = [piece for piece in _SEPARATORS.split(run) if piece]
    if _changes("".join(pieces)) > 0.45:
        return KEY
    if any(len(piece) >= 20 and _changes(piece) > 0.25 and not piece.isalpha() for piece in pieces):
        return KEY
    return run


def _changes(text: str) -> float:
    """The share of neighbours in `text` (ASCII letters and digits) that are of different classes."""
    classes = [_DIGIT if c.isdigit() else _UPPER if c.isupper() else _LOWER for c in text]
    changes = sum(a != b for a, b in pairwise(classes))
    return changes / max(len(classes) - 1, 1)


def _ipv4(match: re.Match[str]) -> str:
    return ADDRESS if all(int(octet) <= 255 for octet in match["ip"].split(".")) else match[0]


def _ipv6(match: re.Match[str]) -> str:
    if match["ip"].count(":") < 2 or match["ip"] == "::":
        return match[0]
    try:
        IPv6Address(match["ip"])
    except ValueError:  # a time, a slice, a C++ name
        return match[0]
    return ADDRESS


# `max_tokens:4096` and `line:1234` look like a host with a port and are none.
_COUNTED = re.compile(
    r"(?:^|[-_])(?:tokens?|limit|context|ctx|length|len|max|min|code|error|status|line|column|char|size|count|total"
    r"|budget|id|index|seed|port|pos|position|window|input|output|prompt|completion|requested|used|bytes|ms)$",
    re.IGNORECASE,
)
_SOURCE_FILE = re.compile(
    r"\.(?:py|pyx|c|cc|cpp|cu|h|hpp|rs|go|js|ts|json|jinja|jinja2|log|txt)$", re.IGNORECASE
)


def _host_and_port(match: re.Match[str]) -> str:
    host, port = match["host"], int(match["port"])
    *_, last = host.rsplit(".", 1)
    if port > 65535 or _COUNTED.search(host) or _SOURCE_FILE.search(host):
        return match[0]
    if host.lower() == "localhost" or ("." in host and last.isalpha()):
        return ADDRESS
    # One word and a small number is more likely a tag (`gpt-oss:20`), a time or a ratio.
    named = "." not in host and not host.isdigit()
    return ADDRESS if named and port >= 1024 else match[0]


# --- The table ----------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One kind of thing that is removed. Rules run in order: what an earlier one took is gone."""

    name: str
    pattern: re.Pattern[str]
    replace: str | Callable[[re.Match[str]], str]


def _rule(name: str, pattern: str, replace: str | Callable[[re.Match[str]], str]) -> Rule:
    return Rule(name, re.compile(pattern, re.IGNORECASE), replace)


_VALUE = r"""(?P<value>[^\s"'`,;&<>(){}\[\]]{3,})"""
_LABELS = (
    r"(?:x-)?api[-_ ]?key|(?:access|auth|refresh|session|bearer)[-_ ]?token|(?:client|api)[-_ ]?secret"
    r"|secret(?:[-_ ]?(?:access[-_ ]?)?key)?|private[-_ ]?key|password|passwd|pwd|authorization|credentials?"
)
_GIVEN = (
    r"""["']?(?:\s+(?:you\s+)?(?:provided|given|supplied|used|is|was))?"""
    r"""\s*[:=]\s*["']?(?:(?:bearer|basic)\s+)?"""
)

# Prefixes by which vendors mark their keys, each with the tail that it has at least.
_KEY_PREFIXES = (
    r"sk-[\w*.-]{8,}",  # OpenAI, Anthropic, DeepSeek, OpenRouter and many more; masked ones too
    r"[prs]k_(?:live|test)_\w{8,}",  # Stripe's form
    r"(?:gsk|hf|fw|r8|tgp_v1|csk|esecret)[-_][\w-]{16,}",  # Groq, Hugging Face, Replicate, ...
    r"(?:nvapi|pplx|xai)-[A-Za-z0-9_]{20,}",  # NVIDIA, Perplexity, xAI (whose models are xai-grok-...)
    r"gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}",
    r"AIza[\w-]{20,}|ya29\.[\w-]{10,}",  # Google
    r"A[KS]IA[A-Z0-9]{12,}",  # AWS
    r"xox[abeprs]-[\w-]{8,}",  # Slack
    r"eyJ[\w-]{8,}(?:\.[\w-]*)*",  # a JSON web token
)

# Last labels that make a dotted word a host name. No two-letter ones that are also field names (id, in, is).
_TOP_LEVEL = (
    r"com|net|org|edu|gov|io|ai|dev|app|cloud|online|tech|xyz|local|localdomain|internal|intranet|lan|corp|private"
    r"|home|arpa|svc|cluster|cn|uk|de|fr|jp|eu|ru|kr|sg"
)

# First folders of a file system; the routes of an API (/v1, /api, /props) are not among them.
_ROOTS = (
    r"home|root|users|usr|var|opt|etc|tmp|mnt|media|srv|proc|run|lib|lib64|bin|nix|volumes|private|workspaces?"
    r"|scratch|app|data|datasets?|models?|checkpoints|weights|cache|storage|dev/shm|code|src|site-packages"
)
_FILES = (
    r"py|pyc|so|gguf|safetensors|bin|json|jsonl|jinja2?|c|cc|cpp|cu|h|hpp|rs|go|js|ts|log|sock|pem|key|crt|ya?ml"
    r"|toml|txt|conf|ini|env|pth?|onnx|engine|tokenizer|model|sqlite|db"
)
_FREE = r"(?<![\w.:/<\]@+-])"  # what comes before a path: not a word, so that `org/model` and `</think>` stay

RULES: Final[tuple[Rule, ...]] = (
    _rule("data url", r"\bdata:[\w/+.;=-]{0,100};base64,[A-Za-z0-9+/=_-]*", DATA),
    _rule("url", r"""\b[a-z][a-z0-9+.-]{1,20}://[^\s"'<>`]*[^\s"'<>`.,;:!?)\]}]""", URL),
    _rule(
        "query",
        r"""(?P<label>[?&][\w-]{0,40}(?:key|token|secret|sig|signature|password)=)[^&\s"'\[]+""",
        rf"\g<label>{KEY}",
    ),
    _rule("named secret", rf"(?P<label>(?:{_LABELS}){_GIVEN}){_VALUE}", _after_label),
    _rule("token", rf"""(?P<label>(?<![a-z])token["']?\s*[:=]\s*["']?){_VALUE}""", _after_token),
    _rule("bearer", r"(?P<label>\b(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9._~+/=*-]{6,})", _after_label),
    _rule("key", rf"(?<![A-Za-z0-9])(?:{'|'.join(_KEY_PREFIXES)})", KEY),
    _rule("hex", r"(?<![\w-])(?:0x)?[0-9a-f]{32,}(?![\w-])", KEY),
    # Some vendors' keys have the form of a UUID (Volcengine's), so no bare UUID stays.
    _rule("uuid", r"(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![\w-])", KEY),
    _rule("opaque", r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{24,}", _opaque),
    _rule("mail", r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+", ADDRESS),
    # Before IPv4, for ::ffff:10.0.0.1.
    _rule(
        "ipv6",
        r"(?<![\w:.])\[?(?P<ip>[0-9a-f:][0-9a-f:.]{0,43}[0-9a-f:])(?:%\w{1,15})?(?:\]:\d{1,5}|\])?(?![\w:])",
        _ipv6,
    ),
    _rule(
        "ipv4",
        r"(?<![\d.])(?<!\bv)(?P<ip>\d{1,3}(?:\.\d{1,3}){3})(?![\d]|\.\d)(?::\d{1,5})?(?:/\d{1,2}\b)?",
        _ipv4,
    ),
    _rule("host name of a cloud", r"\bip-\d{1,3}(?:-\d{1,3}){3}\b(?:\.[\w-]+)*", ADDRESS),
    _rule(
        "host name",
        rf"""(?<![\w@./-])(?:[a-z0-9_][a-z0-9_-]*\.)+(?:{_TOP_LEVEL})(?::\d{{1,5}})?(?![\w-]|\.\w)(?:/[^\s"'<>`]*)?""",
        ADDRESS,
    ),
    _rule(
        "named host",
        r"""(?P<label>\bhost(?:name)?["']?\s*[=:]\s*["']?)[\w.-]+(?::\d{1,5})?""",
        rf"\g<label>{ADDRESS}",
    ),
    _rule(
        "host and port",
        r"(?<![\w.@/-])(?P<host>[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9])?):(?P<port>\d{2,5})(?![\w:]|\.\d)",
        _host_and_port,
    ),
    _rule("folder", rf"""{_FREE}/(?:{_ROOTS})(?:/[^\s"'`<>:,;()\[\]{{}}]+)+""", PATH),
    _rule("file", rf"{_FREE}(?:/[\w.@+-]+)+\.(?:{_FILES})(?![\w/])", PATH),
    _rule("home folder", r"(?<![\w/])~[\w-]*/[\w./@+-]+", PATH),
    _rule("windows path", r"""(?<![\w\\])(?:[a-z]:\\+|\\\\+[\w.$-]+\\+)[^\s"'<>|]+""", PATH),
)
