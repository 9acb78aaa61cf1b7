"""Plans: a body in, an upstream and its body out; picklable, clamped to the window, sealed state opened."""

import json
import pickle

from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.server.plan import LEAST_ANSWER, Plan, Planner
from antiphon.server.routing import ANY, Route, RouteTable, Target

SEALER = Sealer(b"k" * 32)


def planner(kind="generic", sends=None, window=None):
    return Planner(RouteTable((Route(ANY, (Target("u", by_name(kind), sends),), window),)), SEALER)


def body(**fields):
    request = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    return json.dumps({**request, **fields}).encode()


def sent(planned):
    assert isinstance(planned, Plan), planned
    return json.loads(planned.chat.body)


def test_a_plan_survives_the_way_to_a_worker_and_back():
    plan = pickle.loads(pickle.dumps(planner().plan))
    planned = pickle.loads(pickle.dumps(plan(body())))
    assert planned == planner().plan(body())


def test_bad_bodies_are_faults():
    for bad in (b"", b"{", b"[]", body(max_tokens="x"), body(messages=[])):
        fault = planner().plan(bad)
        assert isinstance(fault, Fault)
        assert fault.status == 400


def test_counting_needs_no_max_tokens():
    request = json.loads(body())
    del request["max_tokens"]
    bare = json.dumps(request).encode()
    assert isinstance(planner().plan(bare), Fault)
    assert isinstance(planner().plan(bare, counting=True), Plan)


def test_max_tokens_is_clamped_to_a_known_window():
    known = planner(window=4096)
    assert sent(known.plan(body(max_tokens=100)))["max_tokens"] == 100
    planned = known.plan(body(max_tokens=32000))
    assert sent(planned)["max_tokens"] == 4096 - planned.chat.input_estimate
    long = known.plan(body(max_tokens=32000, messages=[{"role": "user", "content": "word " * 4000}]))
    assert sent(long)["max_tokens"] == LEAST_ANSWER
    assert sent(planner().plan(body(max_tokens=32000)))["max_tokens"] == 32000


def test_the_upstream_gets_its_own_name_for_the_model():
    planned = planner(sends="real").plan(body())
    assert (planned.model, sent(planned)["model"]) == ("m", "real")


def conversation(signature):
    return [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": signature},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
    ]


def test_a_server_that_speaks_messages_gets_the_clients_own_request():
    planned = planner("anthropic", sends="real").plan(body(top_k=3, unheard_of={"a": 1}))
    assert planned.path == "/messages"
    assert sent(planned) == {
        **json.loads(body(top_k=3, unheard_of={"a": 1})),
        "model": "real",
        "stream": True,
    }
    clamped = planner("anthropic", window=1000).plan(body(max_tokens=32000))
    assert sent(clamped)["max_tokens"] == 1000 - clamped.chat.input_estimate


def test_thinking_without_a_signature_goes_back_to_servers_of_open_models_and_not_to_the_api():
    def kept(kind):
        return [
            block["type"]
            for block in sent(planner(kind).plan(body(messages=conversation(""))))["messages"][1]["content"]
        ]

    assert kept("anthropic") == ["thinking", "tool_use"]
    assert kept("anthropic-api") == ["tool_use"]


def test_claude_codes_billing_block_goes_to_the_api_alone():
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.abc; cch=1f2e3;"}
    request = body(system=[billing, {"type": "text", "text": "You"}])
    assert len(sent(planner("anthropic-api").plan(request))["system"]) == 2
    assert sent(planner("anthropic").plan(request))["system"] == [{"type": "text", "text": "You"}]


def test_sealed_state_goes_back_to_the_upstream_that_gave_it():
    details = [{"type": "reasoning.encrypted", "data": "zz", "index": 0}]
    sealed = SEALER.seal("generic", "m", {"reasoning_details": details})
    turn = sent(planner().plan(body(messages=conversation(sealed))))["messages"][1]
    assert turn["reasoning_details"] == details
    state = {"google": {"thought_signature": "A"}}
    sealed = SEALER.seal("generic", "m", {"extra_content": state})
    turn = sent(planner().plan(body(messages=conversation(sealed))))["messages"][1]
    assert turn["tool_calls"][0]["extra_content"] == state


def test_foreign_and_other_models_state_is_ignored():
    other = SEALER.seal("generic", "other-model", {"reasoning_details": [1]})
    for signature in ("", "EroB", other, other[:-2], None, 7, {"a": 1}):
        turn = sent(planner().plan(body(messages=conversation(signature))))["messages"][1]
        assert "reasoning_details" not in turn
        assert turn["reasoning_content"] == "t"


def test_a_users_id_travels_only_as_a_pseudonym_and_only_where_it_is_wanted():
    secret = "user_1f00_account_9_session_7"
    request = body(metadata={"user_id": secret})
    assert secret not in planner().plan(request).chat.body.decode()
    hosted = planner("openai").plan(request)
    assert secret not in hosted.chat.body.decode()
    assert sent(hosted)["safety_identifier"] == SEALER.pseudonym(secret)
