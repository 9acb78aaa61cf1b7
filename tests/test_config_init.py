"""A new file of settings: what is found on the usual ports, and the text that is made of it."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from antiphon.config_file import load
from antiphon.config_init import Chosen, chosen, config_text, label, unused_name
from antiphon.config_probe import PORTS, TIME_LIMIT, Found, find_server, find_servers
from antiphon.server import recognition
from inference_servers import models, serving


class Seen(Struct, frozen=True):
    kind: str
    version: str | None = None
    slots: int | None = None


def looks(kind: str, version: str | None = None, slots: int | None = None) -> Any:
    async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Seen:
        assert api_key is None
        return Seen(kind, version, slots)

    return look


def unused_port() -> int:
    with serving({}) as port:
        return port


# --- Finding --------------------------------------------------------------------------------------


def test_the_usual_ports() -> None:
    assert dict(PORTS) == {
        8000: "vllm",
        30000: "sglang",
        8080: "llamacpp",
        8081: "llamacpp",
        11434: "ollama",
        1234: "lmstudio",
    }


def test_recognition_has_its_time() -> None:
    assert TIME_LIMIT > recognition.TIME_LIMIT


async def test_what_answers_with_models_is_found_in_the_order_of_the_ports() -> None:
    with serving(models("a", "b")) as one, serving(models("c")) as other:
        ports = [(other, "ollama"), (unused_port(), "vllm"), (one, "vllm")]
        found = await find_servers(looks("sglang", "0.5", 32), ports, time_limit=30)
    assert found == [
        Found("sglang", f"http://127.0.0.1:{other}/v1", "0.5", 32, ("c",)),
        Found("sglang", f"http://127.0.0.1:{one}/v1", "0.5", 32, ("a", "b")),
    ]


async def test_what_gives_no_sign_is_taken_for_what_usually_has_the_port() -> None:
    with serving(models("a")) as port:
        found = await find_servers(looks("generic"), [(port, "lmstudio")], time_limit=30)
    assert [(each.kind, each.is_guess) for each in found] == [("lmstudio", True)]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"/v1/models": {"hello": 1}},
        {"/v1/models": []},
        {"/v1/models": {"data": [1]}},
        {"/v1/models": {"data": [{"id": 3}]}},
        {"/v1/models": {"data": [{"id": "m", "type": "model"}], "has_more": False}},  # a gateway's own list
    ],
)
async def test_what_has_no_list_of_models_is_no_inference_server(answer) -> None:
    with serving(answer) as port:
        assert await find_servers(looks("vllm"), [(port, "vllm")], time_limit=30) == []


@pytest.mark.parametrize(
    ("body", "found"), [("{", 0), ('{"data": null}', 1), ('{"data": [' + " " * 1_100_000 + "]}", 0)]
)
async def test_odd_answers(body, found) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    with serving({"/v1/models": answer}) as port:
        assert len(await find_servers(looks("ollama"), [(port, "ollama")], time_limit=30)) == found


async def test_a_redirect_is_not_followed() -> None:
    with serving(models("a")) as target:

        async def answer(request: web.Request) -> web.Response:
            raise web.HTTPFound(f"http://127.0.0.1:{target}/v1/models")

        with serving({"/v1/models": answer}) as port:
            assert await find_servers(looks("vllm"), [(port, "vllm")], time_limit=30) == []


async def test_a_server_that_hangs_does_not_keep_the_others() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Seen:
        return Seen("vllm")

    with serving({"/v1/models": answer}) as hangs, serving(models("a")) as port:
        found = await find_servers(look, [(hangs, "sglang"), (port, "vllm")], time_limit=1)
    assert [each.kind for each in found] == ["vllm"]


async def test_a_server_that_lists_its_models_and_hangs_then_is_one_all_the_same() -> None:
    async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Seen:
        await asyncio.Event().wait()
        raise AssertionError

    with serving(models("a")) as port:
        found = await find_servers(look, [(port, "sglang")], time_limit=1)
    assert found == [Found("sglang", f"http://127.0.0.1:{port}/v1", models=("a",), is_guess=True)]


def keyed(names: tuple[str, ...], key: str) -> Any:
    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {key}":
            return web.Response(status=401)
        return web.json_response(models(*names)["/v1/models"])

    return answer


async def test_a_server_that_is_named_is_asked_with_its_key() -> None:
    props = {"total_slots": 3, "build_info": "b7500"}
    with serving({"/v1/models": keyed(("a",), "k"), "/props": props}) as port:
        url = f"http://127.0.0.1:{port}/v1"
        assert await find_server(recognition.look, url, None, time_limit=30) is None
        found = await find_server(recognition.look, f"{url}/", "k", time_limit=30)
    assert found == Found("llamacpp", f"{url}/", "b7500", 3, ("a",))


async def test_a_server_that_is_named_and_gives_no_sign_is_of_no_kind() -> None:
    with serving(models("a")) as port:
        found = await find_server(looks("generic"), f"http://127.0.0.1:{port}/v1", None, time_limit=30)
    assert found == Found("generic", f"http://127.0.0.1:{port}/v1", models=("a",))
    assert label(found) == "a server of no known kind"


@pytest.mark.parametrize("key", ["a\nb", "\N{SNOWMAN}", " k"])
async def test_a_key_that_no_header_can_carry_is_sent_nowhere(key) -> None:
    async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Seen:
        raise AssertionError

    with serving(models("a")) as port:
        assert await find_server(look, f"http://127.0.0.1:{port}/v1", key, time_limit=30) is None


async def test_a_hosted_api_is_not_asked() -> None:
    async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Seen:
        raise AssertionError

    found = await find_server(look, "https://api.groq.com/openai/v1", "k")
    assert found == Found("groq", "https://api.groq.com/openai/v1")


async def test_a_bug_is_not_swallowed() -> None:
    async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Seen:
        raise ZeroDivisionError

    with serving(models("a")) as port:
        with pytest.raises(ExceptionGroup):
            await find_servers(look, [(port, "vllm")], time_limit=30)


# --- Writing --------------------------------------------------------------------------------------


def read(text: str, folder: Path, environ: dict[str, str] | None = None) -> Any:
    file = folder / "a.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, environ or {})


def test_names_are_not_used_twice() -> None:
    assert unused_name("vllm", []) == "vllm"
    assert unused_name("vllm", ["vllm"]) == "vllm-2"
    assert unused_name("vllm", ["vllm", "vllm-2", "x"]) == "vllm-3"
    assert unused_name("vllm", ["vllm", "vllm-3"]) == "vllm-2"


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("vllm", "auto"),
        ("groq", "auto"),
        ("generic", "auto"),
        ("azure", "azure"),  # its key travels in another header
        ("anthropic-api", "anthropic"),
    ],
)
def test_a_kind_is_written_where_the_first_request_needs_it(kind, written) -> None:
    assert chosen(Found(kind, "http://h/v1"), []).kind == written


def test_slots_are_written_as_they_were_told_and_missed_where_they_were_not() -> None:
    text = config_text([chosen(Found("llamacpp", "http://h/v1", slots=4), [])])
    assert "\nslots = 4    # requests that it may work on at once; the others wait here\n" in text
    text = config_text([chosen(Found("vllm", "http://h/v1"), [])])
    assert (
        '\nslots = "auto"    # requests at once: it does not tell, so this is 8; set how many it takes\n'
        in text
    )
    text = config_text([Chosen("away", "http://h/v1")])  # nobody answered
    assert '\nslots = "auto"    # requests that it may work on at once; the others wait here\n' in text


def test_a_guess_is_written_down_and_what_was_recognised_is_recognised_again() -> None:
    assert chosen(Found("vllm", "http://h/v1", "1.0"), []).kind == "auto"
    assert chosen(Found("vllm", "http://h/v1", is_guess=True), []).kind == "vllm"


def test_servers_have_the_names_that_people_use() -> None:
    assert label(Found("llamacpp", "http://h/v1", "b7500")) == "llama.cpp b7500"
    assert label(Found("groq", "http://h/v1")) == "groq"
    assert label(Found("vllm", "http://h/v1", "1\n[x]\x1b[31m")) == "vLLM 1 [x] [31m"


def test_without_a_server_the_file_serves_the_embedded_models(tmp_path) -> None:
    loaded = read(config_text([]), tmp_path)
    assert (loaded.settings.upstreams, loaded.settings.models, loaded.warnings) == ((), (), [])


def test_one_server_gets_every_name(tmp_path) -> None:
    one = Chosen("vllm", "http://127.0.0.1:8000/v1", about="vLLM", slots=4, models=("m",))
    settings = read(config_text([one]), tmp_path).settings
    assert [(each.name, each.slots, each.kind) for each in settings.upstreams] == [("vllm", 4, "auto")]
    assert settings.models == ()


def test_several_servers_get_the_models_that_they_have(tmp_path) -> None:
    servers = [
        Chosen("a", "http://127.0.0.1:8000/v1", models=("both", "one", "gl*b")),
        Chosen("b", "http://127.0.0.1:8001/v1", models=("both",), key_variable="B_KEY"),
    ]
    loaded = read(config_text(servers), tmp_path, {"B_KEY": "k"})
    assert loaded.warnings == []
    assert loaded.settings.upstreams[1].api_key == "k"
    places = {each.name: [target.upstream for target in each.targets] for each in loaded.settings.models}
    assert places == {"both": ["a", "b"], "one": ["a"], "*": ["a"]}


def test_a_dollar_sign_in_a_name_is_no_variable(tmp_path) -> None:
    servers = [Chosen("a", "http://h/v1", models=("${HOME}", "$$")), Chosen("b", "http://h/v1")]
    models_ = read(config_text(servers), tmp_path).settings.models
    assert [each.name for each in models_] == ["${HOME}", "$$", "*"]


@pytest.mark.parametrize("count", [1, 2])
def test_what_the_file_has_commented_out_can_be_used(tmp_path, count) -> None:
    servers = [Chosen(name, "http://127.0.0.1:1/v1", models=(f"m-{name}",)) for name in "ab"[:count]]
    text = config_text(servers)
    sample = text[text.index("# [[models]]") : text.index("# [limits]")]
    more = "\n".join(line.removeprefix("# ") for line in sample.split("\n"))
    models_ = read(f"{text}\n{more}", tmp_path).settings.models
    assert models_[-1].name == "claude-*"
    assert models_[-1].targets[0].model == "m-a"
    limits = text[text.index("# [limits]") :].replace("# ", "", 1).replace("\n# ", "\n")
    assert read(text[: text.index("# [limits]")] + limits, tmp_path).settings.limits.first_token == 600


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3), st.text(max_size=12))
def test_no_name_from_a_server_breaks_the_file(names, about) -> None:
    servers = [
        chosen(Found("vllm", "http://127.0.0.1:1/v1", about, models=tuple(names)), []),
        Chosen("b", "http://127.0.0.1:2/v1"),
    ]
    document = tomllib.loads(config_text(servers))
    assert [each["name"] for each in document["upstreams"]] == ["vllm", "b"]
    written = [each["name"].replace("$$", "$") for each in document.get("models", [])]
    plain = [name for name in dict.fromkeys(names) if not set(name) & {"*", "?"}]
    assert written == ([*plain, "*"] if plain else [])


def test_the_gateway_does_not_take_a_servers_port():
    server = Chosen(name="llamacpp", base_url="http://127.0.0.1:8080/v1", kind="llamacpp", models=())
    assert "\nport = 8081\n" in config_text([server])
    assert "\nport = 8080\n" in config_text([])
