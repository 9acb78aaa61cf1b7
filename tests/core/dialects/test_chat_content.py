"""What a single block becomes: images, documents, search results, blocks of other servers and times."""

import json

import pytest
from msgspec.structs import replace

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import GENERIC, OLLAMA
from antiphon.core.surfaces.messages.request import parse
from turns import assistant, call, outcome, picture, refusal, result, said, sent, text, user

# --- images and documents ----------------------------------------------------------------------------------------------


def web(url="https://e.x/a.png"):
    return {"type": "image", "source": {"type": "url", "url": url}}


def test_images_keep_their_place():
    assert sent(user(text("a"), web(), text("b"), picture("/9j/"))) == [
        said(
            [
                text("a"),
                {"type": "image_url", "image_url": {"url": "https://e.x/a.png"}},
                text("b"),
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,/9j/"}},
            ]
        )
    ]


def image(**source):
    return {"type": "image", "source": source}


@pytest.mark.parametrize(
    ("block", "path"),
    [
        (image(type="file", file_id="f"), "messages.0.content.1.source.type: "),
        (image(type="base64", data="AA=="), "messages.0.content.1.source.media_type: "),
        (image(type="base64", media_type='x","y', data="AA=="), "messages.0.content.1.source.media_type: "),
        (image(type="base64", media_type="image/png"), "messages.0.content.1.source.data: Field required"),
        (
            image(type="base64", media_type="image/png", data=3),
            "messages.0.content.1.source.data: Input should be a valid string",
        ),
        (image(type="url"), "messages.0.content.1.source.url: "),
        (image(type="url", url="file:///etc/passwd"), "messages.0.content.1.source.url: "),
    ],
)
def test_an_image_that_cannot_be_shown_is_refused(block, path):
    assert refusal(user(text("what"), block)).startswith(path)


def test_images_go_as_far_as_the_server_sees():
    assert refusal(user(web()), to=OLLAMA).startswith("messages.0.content.0.source: image: ")
    assert sent(user(picture()), to=OLLAMA)[0]["content"][0]["type"] == "image_url"
    assert sent(user(web("data:image/png;base64,AA==")), to=OLLAMA)[0]["content"][0]["type"] == "image_url"
    blind = replace(GENERIC, images="none")
    assert refusal(user(text("x"), picture()), to=blind).startswith("messages.0.content.1: image: ")
    in_result = (user("q"), assistant(call()), user(result("a", [text("x"), picture()])))
    assert refusal(*in_result, to=blind).startswith("messages.2.content.0.content.1: image: ")


def document(**source):
    return {"type": "document", "source": source}


def test_text_documents_are_written_out():
    plain = document(type="text", media_type="text/plain", data='D "1"\n')
    assert sent(user(plain, text("sum"))) == [said('<document>\nD "1"\n\n</document>\nsum')]
    titled = plain | {"title": "T", "context": "C"}
    assert sent(user(titled))[0]["content"].startswith(
        "<document>\n<title>T</title>\n<context>C</context>\nD "
    )
    assert sent(user(document(type="content", content="D")))[0]["content"] == "<document>\nD\n</document>"
    mixed = document(type="content", content=[text("D"), picture()])
    parts = sent(user(mixed))[0]["content"]
    assert [part["type"] for part in parts] == ["text", "text", "image_url", "text"]


@pytest.mark.parametrize(
    "media_type", ["text/plain", "text/Markdown", "application/json", "application/ld+json"]
)
def test_texts_as_base64_are_written_out(media_type):
    block = document(type="base64", media_type=media_type, data="RMOpIDE=")
    assert sent(user(block)) == [said("<document>\nDé 1\n</document>")]
    assert sent(user("q"), assistant(block), user("b"))[1]["content"] == "<document>\nDé 1\n</document>"


@pytest.mark.parametrize(
    ("data", "said"), [({}, "Field required"), ({"data": 3}, "Input should be a valid string")]
)
def test_a_document_without_data(data, said):
    block = document(type="base64", media_type="application/pdf", **data)
    assert refusal(user(block)) == f"messages.0.content.0.source.data: {said}"


def test_documents_inside_a_tools_result():
    plain = document(type="text", media_type="text/plain", data="D") | {"title": "T"}
    mixed = document(type="content", content=[text("E"), picture()])
    out = sent(user("q"), assistant(call()), user(result("a", [plain, mixed])))
    assert out[2]["content"] == (
        "<document>\n<title>T</title>\nD\n</document>\n<document>\nE\n[image]\n</document>"
    )
    assert [part["type"] for part in out[3]["content"]] == ["image_url"]


def test_citations_that_nobody_makes_are_degraded():
    plain = document(type="text", media_type="text/plain", data="D")
    assert outcome(user(plain | {"citations": {"enabled": True}})).degraded == (
        "messages.0.content.0.citations",
    )
    assert outcome(user(plain | {"citations": {"enabled": False}})).degraded == ()


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (document(type="base64", media_type="application/pdf", data="JVBERi0="), "application/pdf"),
        (document(type="base64", media_type="application/msword", data="AA=="), "application/msword"),
        (document(type="base64", data="AA=="), "base64"),
        (document(type="base64", media_type="text/plain", data="A"), "text/plain: its data is not"),
        (document(type="base64", media_type="text/plain", data="/w=="), "text/plain: its data is not"),
        (document(type="base64", media_type="text/plain", data="\u00e9"), "text/plain: its data is not"),
        (document(type="url", url="https://e.x/a.pdf"), "a url source is not fetched"),
        (
            document(type="url", media_type="application/pdf", url="https://e.x/a"),
            "application/pdf: a url source",
        ),
        (document(type="file", file_id="f"), "a file source is not fetched"),
        (document(type="new"), "new"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused_by_name(block, named):
    message = refusal(user(text("sum"), block))
    assert message.startswith("messages.0.content.1: document")
    assert named in message
    assert refusal(user("q"), assistant(call()), user(result("a", [block]))).startswith(
        "messages.2.content.0.content.0: document"
    )


def test_a_search_result_holds_text_only():
    found = {"type": "search_result", "source": "s", "title": "t", "content": [picture()]}
    assert refusal(user(found)).startswith("messages.0.content.0.content.0.type: ")


# --- blocks of other servers and times ------------------------------------------------------------------------------------

SERVER_CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "é"}}
SERVER_RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "title": "T", "url": "https://e.x", "encrypted_content": "SEALED"}
    ],
}


def test_what_servers_did_earlier_is_told_as_text():
    out = outcome(user("q"), assistant(SERVER_CALL, SERVER_RESULT, text("a")), user("b"))
    content = json.loads(out.body)["messages"][1]["content"]
    assert content.split("\n") == [
        '[server_tool_use web_search] {"input":{"query":"é"}}',
        '[web_search_tool_result] {"content":[{"title":"T","url":"https://e.x"}]}',
        "a",
    ]
    assert out.degraded == ()
    assert sent(user(SERVER_RESULT))[0]["content"].startswith("[web_search_tool_result]")


def test_a_summary_of_older_turns_is_kept():
    summary = {"type": "compaction", "content": "SUMMARY", "encrypted_content": "SEALED"}
    assert sent(user("q"), assistant(summary, text("a")), user("b"))[1]["content"] == "SUMMARY\na"
    assert (
        outcome(user("q"), assistant({"type": "fallback", "from": "x"}, text("a")), user("b")).degraded == ()
    )


def test_unknown_blocks_of_the_assistant_are_never_refused():
    for block, kept in (
        ({"type": "new", "text": "N"}, "N"),
        ({"type": "new", "content": "N"}, "N"),
        ({"type": "new", "x": 1}, None),
    ):
        out = outcome(user("q"), assistant(block, text("a")), user("b"))
        assert json.loads(out.body)["messages"][1]["content"] == (f"{kept}\na" if kept else "a")
        assert out.degraded == ("messages.1.content.0",)
    out = outcome(
        user("q"),
        assistant(picture(), document(type="file"), document(type="content", content=[text("D"), picture()])),
        user("b"),
    )
    assert out.degraded == ("messages.1.content.0", "messages.1.content.1", "messages.1.content.2")


def test_a_number_beyond_all_bounds_in_a_foreign_block():
    whole = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"mcp_tool_result","content":1e999},{"type":"text","text":"a"}]},{"role":"user","content":"r"}]}'
    out = encode(parse(whole), GENERIC)
    assert out.degraded == ("messages.1.content.0",)


def test_unknown_blocks_of_the_user_are_refused():
    assert (
        refusal(user(text("x"), {"type": "hologram"}))
        == "messages.0.content.1.type: 'hologram' content blocks are not supported"
    )
    assert refusal(user({"type": "container_upload", "file_id": "f"})).startswith(
        "messages.0.content.0.type: 'container_upload'"
    )
    nested = result("a", [{"type": "browser_state"}])
    assert refusal(user("q"), assistant(call()), user(nested)).startswith(
        "messages.2.content.0.content.0.type: 'browser_state'"
    )
