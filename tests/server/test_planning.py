"""Where a request is planned: small ones at once, PDFs in a worker that does not outlive its limits."""

import asyncio
import base64
import io
import json

import pytest

from antiphon.config import Limits
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.server import planning as under_test
from antiphon.server.plan import Plan, Planner
from antiphon.server.planning import Planning
from antiphon.server.routing import ANY, Route, RouteTable, Target
from pdfs import bomb, document, laughs, pdf, slow, words
from turns import assistant, call, result, text, user

pytest.importorskip("pypdfium2", reason="pdf: pypdfium2 is not installed")
PIL_Image = pytest.importorskip("PIL.Image", reason="pdf: pillow is not installed")

PLANNER = Planner(RouteTable((Route(ANY, (Target("up", by_name("generic")),)),)), Sealer(b"k" * 32))
ONE_PAGE = '<document>\n<page number="1">\nHello\n</page>\n</document>'
HELLO = document(pdf(words("Hello")))
REFUSED = "messages.0.content.1: document application/pdf: "


def body(*turns, **fields):
    return json.dumps({"model": "m", "max_tokens": 64, "messages": list(turns), **fields}).encode()


def messages(planned):
    assert isinstance(planned, Plan), planned
    return json.loads(planned.chat.body)["messages"]


@pytest.fixture
def planning():
    made = Planning(Limits(), "text")
    yield made
    made.close()


async def plan(planning, whole, **how):
    return await planning.plan(PLANNER, [whole], **how)


def has_worker(planning):
    return planning._heavy._worker is not None


async def test_without_a_pdf_no_worker_is_started(planning):
    plain = body(
        user(
            text("what is application/pdf?"),
            {"type": "document", "source": {"type": "content", "content": "D"}},
        )
    )
    assert "application/pdf" in messages(await plan(planning, plain))[0]["content"]
    assert not has_worker(planning)


async def test_what_needs_no_look_at_its_pdf_needs_no_worker(planning):
    wrong = await plan(planning, body(user(HELLO), max_tokens=-1))
    assert isinstance(wrong, Fault)
    assert wrong.message.startswith("max_tokens: ")
    assert not has_worker(planning)


async def test_a_pdf_is_read_in_the_worker_and_the_same_each_turn(planning):
    first = user(HELLO, text("sum it up"))
    one = await plan(planning, body(first))
    assert messages(one)[0]["content"] == f"{ONE_PAGE}\nsum it up"
    assert has_worker(planning)
    two = await plan(planning, body(first, assistant(call()), user(result("a", [HELLO]))))
    assert messages(two)[0] == messages(one)[0]
    assert messages(two)[2]["content"] == ONE_PAGE
    counted = await plan(planning, body(first).replace(b'"max_tokens": 64, ', b""), counting=True)
    assert messages(counted) == messages(one)
    # Some clients' JSON escapes slashes, and any letter may be spelled so.
    for spelled in (b"application\\/pdf", b"application/\\u0070df", b"Application/PDF"):
        other = await plan(planning, body(first).replace(b"application/pdf", spelled))
        assert other == one


async def test_a_large_body_is_read_in_the_worker(planning):
    large = Planning(Limits(heavy_body=1024), "text")
    try:
        planned = await plan(large, body(user("x" * 2000)))
        assert messages(planned) == [user("x" * 2000)]
        assert has_worker(large)
    finally:
        large.close()


async def test_pages_as_images():
    planning = Planning(Limits(), "images")
    try:
        parts = messages(await plan(planning, body(user(HELLO))))[0]["content"]
    finally:
        planning.close()
    assert [part["type"] for part in parts] == ["text", "text", "image_url", "text", "text"]
    head, data = parts[2]["image_url"]["url"].split(",")
    assert head == "data:image/jpeg;base64"
    assert PIL_Image.open(io.BytesIO(base64.b64decode(data))).format == "JPEG"


async def test_refused_where_they_are_not_wanted():
    planning = Planning(Limits(), "refuse")
    planned = await plan(planning, body(user(text("q"), HELLO)))
    assert planned == Fault(
        "invalid_request_error", f"{REFUSED}PDFs are not read here: send its text instead", 400
    )
    assert not has_worker(planning)


async def test_one_that_cannot_be_read_is_named(planning):
    planned = await plan(planning, body(user(text("q"), document(b"%PDF-"))))
    assert planned == Fault("invalid_request_error", f"{REFUSED}it is not a PDF that can be read", 400)


TOO_MUCH = Fault("invalid_request_error", f"{REFUSED}it takes too much time or memory to read", 400)


@pytest.mark.parametrize("hostile", [bomb, laughs])
async def test_what_takes_too_much_memory_is_named_and_hurts_nobody_else(monkeypatch, hostile):
    monkeypatch.setattr(under_test, "MEMORY", 128 * 1024 * 1024)  # to be there sooner
    planning = Planning(Limits(max_body=1024 * 1024), "text")
    ask = body(user(HELLO, document(hostile())))
    try:
        planned, other = await asyncio.gather(plan(planning, ask), plan(planning, body(user(HELLO))))
    finally:
        planning.close()
    assert planned == TOO_MUCH
    assert messages(other)[0]["content"] == ONE_PAGE


async def test_what_takes_too_long_is_named_and_hurts_nobody_else(planning):
    assert messages(await plan(planning, body(user(HELLO))))  # the worker has started
    patience, planning._heavy._seconds = planning._heavy._seconds, 0.2
    assert await plan(planning, body(user(text("q"), document(slow())))) == TOO_MUCH
    planning._heavy._seconds = patience
    assert messages(await plan(planning, body(user(HELLO))))[0]["content"] == ONE_PAGE


async def test_a_caller_that_leaves_ends_the_work(planning):
    asked = asyncio.create_task(plan(planning, body(user(document(slow())))))
    while not planning._heavy._note or not planning._heavy._note.value:
        await asyncio.sleep(0.001)
    (worker,) = planning._heavy.processes
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.to_thread(worker.join, 20)
    assert worker.exitcode == -9
    assert messages(await plan(planning, body(user(HELLO))))[0]["content"] == ONE_PAGE
