"""The door: every form in which a key is sent, every state it may be in, every path."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.config import ConfigError, Settings
from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server import entry as door
from antiphon.server import gate
from antiphon.server.admin_key import AdminKey
from antiphon.server.answers import respond, respond_fault
from antiphon.server.entry import Entry, Identity, entry_for, identify, presented
from antiphon.server.fairness import Priority
from antiphon.server.keys import Key, Keyring, make
from antiphon.server.keys_file import edit_rows

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC).timestamp()
YESTERDAY = datetime(2026, 11, 28, tzinfo=UTC)
ADMIN = "admin-secret-0123456789"


class Keys:
    """A keys file with a key in each state; `self.good` and the others are the secrets."""

    def __init__(self, path) -> None:
        self.path = path
        self.good = self._add("good")
        self.other = self._add("other", models=("qwen*",), weight=3.0, priority="background", strict=True)
        self.revoked = self._add("revoked", revoked=YESTERDAY)
        self.expired = self._add("expired", expires=YESTERDAY)
        self.both = self._add("both", expires=YESTERDAY, revoked=YESTERDAY)
        self.unknown = make("nobody", now=NOW)[0].encode()
        self.ring = Keyring(path)

    def _add(self, name: str, **fields) -> bytes:
        secret, key = make(name, now=NOW)
        with edit_rows(self.path, Key) as rows:
            rows.append(msgspec.structs.replace(key, **fields))
        return secret.encode()


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.json")


def scope(
    *headers: tuple[bytes, bytes],
    method: str = "POST",
    client: tuple[str, int] | None = ("192.0.2.7", 5000),
    host: bytes = b"llm.example.com",
    json_type: bool = True,
) -> dict:
    base = [(b"host", host)] + ([(b"content-type", b"application/json")] if json_type else [])
    return {"method": method, "headers": [*base, *headers], "client": client}


def local(*headers: tuple[bytes, bytes], **more) -> dict:
    return scope(*headers, client=("127.0.0.1", 5000), host=b"localhost:8080", **more)


def x(value: bytes) -> tuple[bytes, bytes]:
    return b"x-api-key", value


def auth(value: bytes) -> tuple[bytes, bytes]:
    return b"authorization", value


# --- forms of a key -----------------------------------------------------------------------------------

K, OTHER = b"KEY", b"OTHER"  # filled in below: the good key and another good one

FORMS: list[tuple[str, list[tuple[bytes, bytes]], str | Fault]] = [
    ("x-api-key", [x(K)], "good"),
    ("bearer", [auth(b"Bearer " + K)], "good"),
    ("lower-case scheme", [auth(b"bearer " + K)], "good"),
    ("upper-case scheme", [auth(b"BEARER " + K)], "good"),
    ("spaces", [auth(b"  Bearer   " + K + b"  ")], "good"),
    ("a tab", [auth(b"Bearer\t" + K)], "good"),
    ("spaces about x-api-key", [x(b" " + K + b"\t")], "good"),
    ("both, the same", [x(K), auth(b"Bearer " + K)], "good"),
    ("both, different: x-api-key", [x(K), auth(b"Bearer " + OTHER)], "good"),
    ("both, different: in any order", [auth(b"Bearer " + OTHER), x(K)], "good"),
    ("a placeholder and a key", [x(b"dummy"), auth(b"Bearer " + K)], "good"),
    ("a key and a placeholder", [x(K), auth(b"Bearer dummy")], "good"),
    ("a proxy's Basic beside it", [auth(b"Basic dXNlcjpwYXNz"), x(K)], "good"),
    ("an empty one beside it", [x(b""), auth(b"Bearer " + K)], "good"),
    ("twice the same", [x(K), x(K)], "good"),
    ("twice, once empty", [x(b""), x(K)], "good"),
    ("twice, different", [x(K), x(OTHER)], door.SEVERAL_KEYS),
    ("twice, different bearers", [auth(b"Bearer " + K), auth(b"Bearer " + OTHER)], door.SEVERAL_KEYS),
    ("twice, one of them wrong", [x(K), x(b"wrong")], door.SEVERAL_KEYS),
    ("joined by a proxy", [x(K + b", " + OTHER)], door.UNKNOWN_KEY),
    ("joined with itself", [x(K + b", " + K)], door.UNKNOWN_KEY),
    ("none", [], door.MISSING_KEY),
    ("empty", [x(b"")], door.MISSING_KEY),
    ("blank", [x(b"  ")], door.MISSING_KEY),
    ("empty authorization", [auth(b"")], door.MISSING_KEY),
    ("Bearer alone", [auth(b"Bearer")], door.MISSING_KEY),
    ("Bearer and blanks", [auth(b"Bearer   ")], door.MISSING_KEY),
    ("no scheme", [auth(K)], door.MISSING_KEY),
    ("glued to its scheme", [auth(b"Bearer" + K)], door.MISSING_KEY),
    ("another scheme", [auth(b"Basic " + K)], door.MISSING_KEY),
    ("a token scheme", [auth(b"Token " + K)], door.MISSING_KEY),
    ("two words", [auth(b"Bearer " + K + b" x")], door.UNKNOWN_KEY),
    ("scheme in x-api-key", [x(b"Bearer " + K)], door.UNKNOWN_KEY),
    ("quoted", [x(b'"' + K + b'"')], door.UNKNOWN_KEY),
    ("cut", [x(K[:-1])], door.UNKNOWN_KEY),
    ("with a tail", [x(K + b"a")], door.UNKNOWN_KEY),
    ("another case", [x(b"UPPER")], door.UNKNOWN_KEY),
    ("not ASCII", [x(b"\xc3\xbc\xff\x00")], door.UNKNOWN_KEY),
    ("over-long", [x(b"a" * 60_000)], door.UNKNOWN_KEY),
    ("over-long with the form", [x(b"sk-antiphon-" + b"a" * 60_000)], door.UNKNOWN_KEY),
    ("a vendor's", [x(b"sk-ant-api03-" + b"a" * 80)], door.UNKNOWN_KEY),
    ("in another header", [(b"api-key", K), (b"cookie", b"x-api-key=" + K)], door.MISSING_KEY),
]


@pytest.mark.parametrize(("sent", "expected"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS])
def test_forms(keys, sent, expected) -> None:
    def filled(value: bytes) -> bytes:
        if value == b"UPPER":
            return keys.good.upper()
        if value == K[:-1]:
            return keys.good[:-1]
        return value.replace(OTHER, keys.other).replace(K, keys.good)

    said = identify(scope(*((name, filled(value)) for name, value in sent)), keys.ring, NOW)
    if isinstance(expected, str):
        assert isinstance(said, Identity)
        assert said.key.name == expected
    else:
        assert said is expected


@pytest.mark.parametrize("form", [x, lambda value: auth(b"Bearer " + value)], ids=["x-api-key", "bearer"])
@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("unknown", "the API key is not valid"),
        ("revoked", "this API key was revoked"),
        ("expired", "this API key expired on 2026-11-28T00:00:00Z"),
        ("both", "this API key was revoked"),
    ],
)
def test_what_is_wrong_with_a_key_is_said_to_its_holder(keys, which, message, form) -> None:
    said = identify(scope(form(getattr(keys, which))), keys.ring, NOW)
    assert (said.kind, said.status, said.message) == ("authentication_error", 401, message)
    assert getattr(keys, which).decode() not in repr(said)


def test_of_two_keys_the_one_that_is_good_counts(keys) -> None:
    said = identify(scope(x(keys.revoked), auth(b"Bearer " + keys.good)), keys.ring, NOW)
    assert said.key.name == "good"
    said = identify(scope(x(keys.unknown), auth(b"Bearer " + keys.expired)), keys.ring, NOW)
    assert "expired" in said.message


def test_a_key_expires_while_the_gateway_runs(keys) -> None:
    before = YESTERDAY.timestamp() - 0.1
    assert identify(scope(x(keys.expired)), keys.ring, before).key.name == "expired"
    assert isinstance(identify(scope(x(keys.expired)), keys.ring, before + 0.2), Fault)


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"x-api-key", b"authorization", b"host", b"cookie"]),
        st.one_of(
            st.binary(max_size=80),
            st.sampled_from([b"Bearer ", b"bearer\t", b"Basic "]).flatmap(
                lambda scheme: st.binary(max_size=60).map(scheme.__add__)
            ),
        ),
    ),
    max_size=6,
)


@given(headers=HEADERS)
@example(headers=[(b"authorization", b"\x1c")])  # blank for str.split, not for bytes.split
@example(headers=[(b"authorization", b" ")])
def test_the_parser_never_raises_and_never_lets_in_what_is_no_key(keys, headers) -> None:
    sent = presented(headers)
    assert isinstance(sent, (tuple, Fault))
    said = identify({"method": "GET", "headers": headers, "client": None}, keys.ring, NOW)
    assert said in (door.MISSING_KEY, door.UNKNOWN_KEY, door.SEVERAL_KEYS)
    if isinstance(sent, tuple):
        assert all(sent)
        assert len(sent) <= 2
        assert all(any(secret in value for _, value in headers) for secret in sent)


@given(position=st.integers(0, 54), byte=st.integers(0, 255))
def test_a_key_with_one_other_byte_is_not_that_key(keys, position, byte) -> None:
    forged = bytearray(keys.good)
    forged[position] = byte
    said = identify(scope(x(bytes(forged))), keys.ring, NOW)
    if bytes(forged) == keys.good:
        assert said.key.name == "good"
    else:
        assert isinstance(said, Fault)


# --- who it is ----------------------------------------------------------------------------------------


def test_an_identity_is_what_its_key_may_do(keys) -> None:
    who = identify(scope(x(keys.other), (b"x-claude-code-session-id", b"s")), keys.ring, NOW)
    assert (who.share, who.name, who.weight, who.strict) == ("other", "other", 3.0, True)
    assert who.highest is Priority.BACKGROUND
    assert who.operator is False
    assert who.allows("qwen3")
    assert not who.allows("llama")
    assert keys.other.decode() not in repr(who)


def test_without_keys_who_asks_may_use_every_model() -> None:
    who = identify(local(), None, NOW)
    assert (who.key, who.name, who.weight, who.strict) == (None, "", 1.0, False)
    assert len(who.share) == 12
    assert who.allows("anything")


# --- which path needs what ----------------------------------------------------------------------------

OPEN, MESSAGES, METRICS, SLOTS = "/healthz", "/v1/messages", "/metrics", "/admin/slots"
PATHS = (OPEN, "/", "/api/hello", MESSAGES, "/v1/models", "/nowhere", METRICS, SLOTS, "/admin")


def status(said: Identity | Fault) -> int:
    return 200 if isinstance(said, Identity) else said.status


@pytest.mark.parametrize("path", PATHS)
def test_nothing_but_health_is_served_to_others_without_a_key(keys, path) -> None:
    stranger = scope(method="GET")
    assert status(Entry().admit(stranger, path, NOW)) == 403
    with_keys = Entry(keys.ring, admin=AdminKey(ADMIN)).admit(stranger, path, NOW)
    assert status(with_keys) == (200 if path in door.OPEN_PATHS else 401)


@pytest.mark.parametrize("path", PATHS)
def test_with_keys_this_machine_needs_one_too(keys, path) -> None:
    said = Entry(keys.ring).admit(local(method="GET"), path, NOW)
    admin = path.startswith("/admin")
    assert status(said) == (403 if admin else 200 if path in door.OPEN_PATHS or path == METRICS else 401)


def test_no_keys_at_all_in_the_file_is_not_no_keys_file(tmp_path) -> None:
    path = tmp_path / "keys.json"
    with edit_rows(path, Key):
        pass
    entry = Entry(Keyring(path), allow_anonymous=True)
    assert entry.admit(local(), MESSAGES, NOW) is door.MISSING_KEY


def test_a_key_is_good_under_every_host_name_and_for_a_page_that_has_it(keys) -> None:
    entry = Entry(keys.ring)
    sent = scope(x(keys.good), (b"origin", b"https://app.example"))
    assert entry.admit(sent, MESSAGES, NOW).name == "good"
    assert status(entry.admit(scope((b"origin", b"https://app.example")), MESSAGES, NOW)) == 401


@pytest.mark.parametrize("path", PATHS)
def test_a_host_name_alone_makes_nobody_local(path) -> None:
    said = Entry().admit(scope(host=b"localhost", method="GET"), path, NOW)
    assert said is gate.NOT_LOCAL


def test_with_a_key_a_post_is_json_all_the_same(keys) -> None:
    entry = Entry(keys.ring)
    assert status(entry.admit(scope(x(keys.good), json_type=False), MESSAGES, NOW)) == 415
    assert status(entry.admit(scope(json_type=False), MESSAGES, NOW)) == 401  # the key first


def test_anonymous_is_everybody_but_web_pages() -> None:
    entry = Entry(allow_anonymous=True)
    assert status(entry.admit(scope(), MESSAGES, NOW)) == 200
    assert status(entry.admit(scope(), OPEN, NOW)) == 200
    assert status(entry.admit(scope((b"origin", b"null")), MESSAGES, NOW)) == 403
    assert status(entry.admit(scope(json_type=False), MESSAGES, NOW)) == 415
    assert status(entry.admit(scope(method="GET"), METRICS, NOW)) == 403
    assert status(entry.admit(scope(method="GET"), SLOTS, NOW)) == 403


@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_the_admin_key_and_no_other_opens_admin(keys, with_keys, method) -> None:
    entry = Entry(keys.ring if with_keys else None, admin=AdminKey(ADMIN))
    for form in (x(ADMIN.encode()), auth(b"Bearer " + ADMIN.encode())):
        assert entry.admit(scope(form, method=method), SLOTS, NOW).operator is True
    for wrong in ((), (x(keys.good),), (x(ADMIN.encode() + b"0"),), (x(ADMIN.upper().encode()),)):
        assert entry.admit(local(*wrong, method=method), SLOTS, NOW) is door.WRONG_ADMIN_KEY


def test_the_admin_key_is_no_client_key_and_a_client_key_no_admin_key(keys) -> None:
    entry = Entry(keys.ring, admin=AdminKey(ADMIN))
    assert entry.admit(scope(x(ADMIN.encode())), MESSAGES, NOW) is door.UNKNOWN_KEY
    assert entry.admit(scope(x(keys.good)), MESSAGES, NOW).operator is False
    assert entry.admit(scope(x(keys.good), method="GET"), METRICS, NOW) is door.WRONG_ADMIN_KEY


def test_without_an_admin_key_admin_is_this_machines_while_there_are_no_keys(keys) -> None:
    assert Entry().admit(local(method="GET"), SLOTS, NOW).operator is True
    assert Entry(keys.ring).admit(local(x(keys.good), method="GET"), SLOTS, NOW) is door.NO_ADMIN_KEY


@pytest.mark.parametrize(
    "foreign",
    [
        {"client": ("192.0.2.7", 1)},
        {"host": b"rebound.example"},
        {"extra": (b"origin", b"http://rebound.example")},
        {"extra": (b"x-forwarded-for", b"192.0.2.7")},
        {"extra": (b"forwarded", b"for=192.0.2.7")},
    ],
    ids=["peer", "host", "origin", "proxy", "new proxy"],
)
@pytest.mark.parametrize("with_keys", [False, True])
def test_metrics_are_this_machines_or_the_operators(keys, with_keys, foreign) -> None:
    ring = keys.ring if with_keys else None
    extra = [foreign["extra"]] if "extra" in foreign else []
    place = {"client": ("127.0.0.1", 1), "host": b"localhost"}
    place |= {name: value for name, value in foreign.items() if name != "extra"}
    assert status(Entry(ring).admit(local(method="GET"), METRICS, NOW)) == 200
    assert status(Entry(ring).admit(scope(*extra, method="GET", **place), METRICS, NOW)) == 403
    entry = Entry(ring, admin=AdminKey(ADMIN))
    assert status(entry.admit(scope(*extra, method="GET", **place), METRICS, NOW)) == 401
    sent = scope(*extra, auth(b"Bearer " + ADMIN.encode()), method="GET", **place)
    assert status(entry.admit(sent, METRICS, NOW)) == 200


def test_a_ticking_door_follows_its_file(tmp_path) -> None:
    keys = Keys(tmp_path / "keys.json")
    entry = Entry(keys.ring)
    entry.tick(NOW)
    assert entry.admit(scope(x(keys.good)), MESSAGES, NOW).name == "good"
    with edit_rows(keys.path, Key) as rows:
        rows[0] = msgspec.structs.replace(rows[0], revoked=YESTERDAY)
    entry.tick(NOW + 1)
    assert entry.admit(scope(x(keys.good)), MESSAGES, NOW + 1) is door.REVOKED_KEY
    Entry().tick(NOW)  # a door without keys has nothing to follow


# --- from settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "llm.example.com"])
def test_a_public_address_without_keys_has_to_be_written_down(keys, host) -> None:
    with pytest.raises(ConfigError, match="allow_anonymous"):
        entry_for(Settings(host=host))
    assert entry_for(Settings(host=host, allow_anonymous=True)).keyring is None
    assert entry_for(Settings(host=host, keys_file=str(keys.path))).keyring is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_neither(host) -> None:
    assert entry_for(Settings(host=host)).keyring is None


def test_a_keys_file_that_is_not_there_is_not_no_keys_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match="antiphon key new"):
        entry_for(Settings(keys_file=str(tmp_path / "keys.json"), allow_anonymous=True))


def test_the_admin_key_of_settings() -> None:
    sent = scope(x(ADMIN.encode()), method="GET")
    assert entry_for(Settings(admin_key=ADMIN)).admit(sent, SLOTS, NOW).operator
    with pytest.raises(ConfigError):
        entry_for(Settings(admin_key="short"))


# --- as an answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "answered"),
    [("good", 200), ("other", 404), ("unknown", 401), ("revoked", 401), ("expired", 401), (None, 401)],
)
async def test_the_door_before_an_application(keys, which, answered) -> None:
    """What an application does with the door, end to end: the answer's shape, and no key in it."""
    entry = Entry(keys.ring)

    async def app(scope, receive, send) -> None:
        who = entry.admit(scope, scope["path"], NOW)
        if isinstance(who, Identity) and not who.allows("llama"):
            who = own_faults.not_found("/llama")
        if isinstance(who, Fault):
            await respond_fault(send, who, "req_1")
        else:
            await respond(send, 200, json.dumps({"key": who.name}).encode(), [])

    sent = [] if which is None else [x(getattr(keys, which))]
    messages: list[dict] = []

    async def send(message) -> None:
        messages.append(message)

    await app({**scope(*sent), "path": MESSAGES, "type": "http"}, None, send)
    body = json.loads(messages[1]["body"])
    assert messages[0]["status"] == answered
    if answered == 200:
        assert body == {"key": "good"}
    else:
        kind = "not_found_error" if answered == 404 else "authentication_error"
        assert (body["type"], body["error"]["type"], body["request_id"]) == ("error", kind, "req_1")
    assert all(value.decode() not in str(messages) for _, value in sent)


@pytest.mark.parametrize(
    ("client", "foreign"),
    [
        (("127.0.0.1", 1), False),
        (("127.9.9.9", 1), False),
        (("::1", 1), False),
        (("::ffff:127.0.0.1", 1), False),
        (("", 0), False),  # a Unix socket
        (None, False),
        (("192.168.1.5", 1), True),
        (("0.0.0.0", 1), True),
        (("::ffff:192.0.2.7", 1), True),
        (("fe80::1%eth0", 1), True),
    ],
)
def test_peers_of_this_machine(client, foreign) -> None:
    assert (gate.peer_refusal({"client": client}) is gate.NOT_LOCAL) is foreign
