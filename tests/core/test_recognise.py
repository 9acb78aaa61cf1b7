"""Which server is it: the signs, what speaks louder, and what is no sign."""

import pytest

from antiphon.core import recognise as module
from antiphon.core.dialects.quirks import by_name, names
from antiphon.core.recognise import (
    LARGEST_SLOTS,
    Evidence,
    Recognition,
    hosted_kind,
    owners_of,
    recognise,
    root_url,
)

HERE = "http://127.0.0.1:8000/v1"
JSON_INFO, OLD_INFO = module.SERVER_INFO


def seen(base_url=HERE, **evidence):
    return recognise(Evidence(base_url=base_url, **evidence))


@pytest.mark.parametrize(
    "evidence, expected",
    [
        ({}, Recognition()),
        ({"owners": ("vllm",)}, Recognition("vllm")),
        ({"owners": ("sglang",)}, Recognition("sglang")),
        ({"owners": ("llamacpp",)}, Recognition("llamacpp")),
        ({"owners": ("library",)}, Recognition("ollama")),
        ({"owners": ("organization_owner",)}, Recognition("lmstudio")),
        ({"owners": ("someone", "vllm")}, Recognition("vllm")),
        ({"servers": ("uvicorn", "llama.cpp")}, Recognition("llamacpp")),
        ({"metrics": b"# HELP sglang:num_running_reqs"}, Recognition("sglang")),
        ({"answers": {"/version": {"version": "0.33.0"}}}, Recognition("vllm", "0.33.0")),
        ({"answers": {"/version": {"version": "0.11.0"}}}, Recognition("vllm-0.11", "0.11.0")),
        ({"answers": {"/api/version": {"version": "0.14.0"}}}, Recognition("ollama", "0.14.0")),
        (
            {"answers": {"/props": {"total_slots": 4, "build_info": "b9000"}}},
            Recognition("llamacpp", "b9000", 4),
        ),
        ({"answers": {"/props": {"default_generation_settings": {}}}}, Recognition("llamacpp")),
        (
            {"answers": {OLD_INFO: {"version": "0.4.6", "max_running_requests": 16}}},
            Recognition("sglang", "0.4.6", 16),
        ),
        (
            {
                "answers": {
                    JSON_INFO: {
                        "version": "0.5.23",
                        "max_running_requests": 4096,
                        "internal_states": [{"effective_max_running_requests_per_dp": 48}] * 2,
                    }
                }
            },
            Recognition("sglang", "0.5.23", 96),
        ),
        (
            {
                "owners": ("vllm",),
                "answers": {JSON_INFO: {"vllm_config": {"scheduler_config": {"max_num_seqs": 64}}}},
            },
            Recognition("vllm", None, 64),
        ),
    ],
    ids=str,
)
def test_signs(evidence, expected):
    assert seen(**evidence) == expected


def test_a_route_of_its_own_beats_a_route_that_others_have():
    answers = {"/version": {"version": "1"}, "/props": {"total_slots": 2, "build_info": "b1"}}
    assert seen(answers=answers) == Recognition("llamacpp", "b1", 2)
    assert seen(owners=("sglang",), answers={"/version": {"version": "1"}}).kind == "sglang"


def test_two_routes_of_one_server_are_one_sign():
    answers = {JSON_INFO: {"tp_size": 1}, OLD_INFO: {"tp_size": 1}, "/props": {"total_slots": 2}}
    assert seen(servers=("llama.cpp",), answers=answers).kind == "llamacpp"


def test_the_owner_that_every_gateway_claims_is_no_sign():
    assert seen(owners=("openai",)) == Recognition()
    assert seen(owners=("system",)).kind == "openai"


@pytest.mark.parametrize("nonsense", [None, [], "x", 7, {}, {"version": None}, {"total_slots": None}])
def test_other_answers_are_no_sign(nonsense):
    assert seen(answers=dict.fromkeys(module.ROUTES, nonsense)) == Recognition()


@pytest.mark.parametrize("slots", [0, -1, True, "4", 4.0, None, LARGEST_SLOTS + 1, [4]])
def test_slots_that_are_none(slots):
    answer = {"total_slots": slots, "default_generation_settings": {}}
    assert seen(answers={"/props": answer}) == Recognition("llamacpp")


@pytest.mark.parametrize("states", [[], [{}], [None], "x", [{"effective_max_running_requests_per_dp": "8"}]])
def test_schedulers_that_do_not_say_leave_it_to_the_setting(states):
    answer = {"internal_states": states, "max_running_requests": 12}
    assert seen(answers={OLD_INFO: answer}).slots == 12
    assert seen(answers={OLD_INFO: {**answer, "max_running_requests": None}}).slots is None


@pytest.mark.parametrize("version", [7, "", "x" * 65, "0.33.0\nx-evil: 1", "\x1b[2J"])
def test_a_version_that_cannot_be_shown_is_left_out(version):
    assert seen(owners=("vllm",), answers={"/version": {"version": version}}).version is None


@pytest.mark.parametrize(
    "host, kind",
    [
        ("api.anthropic.com", "anthropic-api"),
        ("api.openai.com", "openai"),
        ("mine.openai.azure.com", "azure"),
        ("mine.services.ai.azure.com", "azure"),
        ("openrouter.ai", "openrouter"),
        ("api.deepseek.com", "deepseek"),
        ("api.moonshot.ai", "kimi"),
        ("api.moonshot.cn", "kimi"),
        ("api.z.ai", "glm"),
        ("open.bigmodel.cn", "glm"),
        ("dashscope.aliyuncs.com", "qwen"),
        ("dashscope-intl.aliyuncs.com", "qwen"),
        ("api.minimax.io", "minimax"),
        ("api.minimaxi.com", "minimax"),
        ("api.mistral.ai", "mistral"),
        ("generativelanguage.googleapis.com", "gemini"),
        ("api.groq.com", "groq"),
        ("api.together.xyz", "together"),
        ("api.x.ai", "xai"),
        ("eu-west-1.api.x.ai", "xai"),
        ("API.OpenAI.com.", "openai"),
        ("api.openai.com.evil.example", None),
        ("evilapi.openai.com", None),
        ("openai.azure.com", None),
        ("127.0.0.1", None),
        ("", None),
    ],
)
def test_hosted_apis_by_the_whole_of_their_host_name(host, kind):
    assert hosted_kind(f"https://{host}:443/v1?x=api.openai.com") == kind


def test_an_address_that_is_none_is_no_sign():
    assert hosted_kind("http://[::1/v1") is None
    assert seen("http://[::1/v1") == Recognition()


def test_the_address_of_a_hosted_api_beats_what_it_says():
    assert seen("https://api.groq.com/openai/v1", owners=("vllm",)) == Recognition("groq")


def test_the_root_is_the_server_without_version_and_query():
    for base in (
        "http://a/v1",
        "http://a/v1/",
        "http://a",
        "http://a/",
        "http://a/v1beta",
        "http://a/v4?q=1",
    ):
        assert root_url(base) == "http://a"
    assert root_url("http://a/llm/v1") == "http://a/llm"
    assert root_url("http://a/v1/x") == "http://a/v1/x"


def test_owners_of_a_model_list():
    data = [{"owned_by": "vLLM"}, {"owned_by": "vllm"}, {"owned_by": 7}, {}, None, "x", {"owned_by": "b"}]
    assert owners_of({"data": data}) == ("vllm", "b")
    for other in (None, [], {}, {"data": None}, {"data": {}}, "x"):
        assert owners_of(other) == ()


def test_every_sign_is_of_a_row_and_slots_are_told_where_its_row_says():
    kinds = {sign.kind for sign in module.SIGNS}
    kinds |= {kind for table in (module.OWNERS, module.SERVERS, module.METRICS) for kind in table.values()}
    kinds |= {kind for _, kind in module.HOSTS}
    assert kinds <= set(names())
    telling = {sign.kind: sign.route for sign in module.SIGNS if sign.slots}
    for name in ("vllm", "sglang", "llamacpp", "ollama", "lmstudio", "generic"):
        report = by_name(name).slots_report
        assert (report == "none") == (name not in telling)
        assert report == "none" or report in telling[name]


def test_every_row_can_be_recognised():
    found = {kind for table in (module.OWNERS, module.SERVERS) for kind in table.values()}
    found |= {kind for _, kind in module.HOSTS} | {sign.kind for sign in module.SIGNS}
    assert set(names()) - found == {"generic", "vllm-0.11", "anthropic"}
