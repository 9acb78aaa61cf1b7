"""Chains of prefixes, and the belief about who has them: grows with turns, bounded, corrected by what servers say."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.server.prefixes import CHUNK, LINKS, Belief, Prefix, PrefixIndex, prefix_chain, root

A, B = ("gpu-a", "m"), ("gpu-b", "m")
RECORDED = Path(__file__).parents[1] / "data" / "requests"


def chat(*texts, **members):
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return json.dumps({"model": "m", **members, "messages": messages}).encode()


def common(one, other):
    """Links that two chains have in common."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine.digest != its.digest:
            break
        count += 1
    return count


# --- chains ---


def test_the_next_turn_begins_with_the_whole_of_this_one():
    first = prefix_chain(chat("q", tools=[{"a": 1}]))
    second = prefix_chain(chat("q", "a", "more", tools=[{"a": 1}]))
    assert second[: len(first)] == first
    assert [prefix.size for prefix in second] == sorted({prefix.size for prefix in second})
    assert root(first) == root(second) == first[1].digest


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"max_tokens": 7},
        {"temperature": 0.5},
        {"stream": False},
        {"metadata": {"user_id": "u"}},
    ],
)
def test_what_is_not_in_the_prompt_changes_nothing(changed):
    assert prefix_chain(chat("q", **changed)) == prefix_chain(chat("q"))


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": [{"a": 2}]},
        {"system": "Other."},
        {"cache_salt": "x"},
        {"reasoning_effort": "high"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_what_comes_before_the_messages_changes_everything(changed):
    assert common(prefix_chain(chat("q", **changed)), prefix_chain(chat("q", tools=[{"a": 1}]))) == 0


def test_pieces_do_not_run_into_each_other():
    one = prefix_chain(b'{"messages":["ab","c"]}')
    other = prefix_chain(b'{"messages":["a","bc"]}')
    assert one == other == ()  # a message is an object
    one = prefix_chain(b'{"tools":[1],"messages":[{"role":"user","content":"2"}]}')
    other = prefix_chain(b'{"tools":[1,{"role":"user","content":"2"}],"messages":[]}')
    assert common(one, other) == 0


def test_the_root_is_the_first_turn_and_not_what_many_have_before_it():
    def opened(question):
        system = {"role": "system", "content": "s" * 10_000}
        messages = [system, {"role": "user", "content": question}]
        return prefix_chain(json.dumps({"messages": messages}).encode())

    one, other = opened("one"), opened("other")
    assert common(one, other) == len(one) - 1 == 3
    assert root(one) != root(other)
    assert root(()) == b""


def test_a_long_piece_has_links_within():
    document = "d" * 4 * CHUNK
    one, other = prefix_chain(chat(document + "What?")), prefix_chain(chat(document + "Why, and when?"))
    assert common(one, other) == 4
    assert one[3].size == 4 * CHUNK
    tools = [{"name": "t" * CHUNK}, {"name": "u"}]
    assert common(prefix_chain(chat("q", tools=tools)), prefix_chain(chat("q", tools=tools[:1]))) == 1


def test_a_text_prompt():
    one = prefix_chain(json.dumps({"model": "m", "prompt": "p" * 2 * CHUNK}).encode())
    longer = prefix_chain(json.dumps({"model": "m", "prompt": "p" * 3 * CHUNK}).encode())
    assert common(one, longer) == 2
    assert root(one) == root(longer)


def in_chat(data):
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def in_messages(data):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@pytest.mark.parametrize("image", [in_chat, in_messages])
def test_an_image_counts_as_what_it_costs(image):
    text = {"type": "text", "text": "Which of them, in base64?"}
    large = prefix_chain(chat([image("A" * 100_000), text, image("B" * 100_000)]))
    larger = prefix_chain(chat([image("A" * 200_000), text, image("B" * 100_000)]))
    assert len(large) == 1
    assert large[0].size == larger[0].size < 13_000
    assert large[0].digest != larger[0].digest
    assert prefix_chain(chat([image("A" * 300)]))[0].size > 300


def test_a_text_about_images_is_a_text():
    code = "def encode(data): return base64.b64encode(data), 'and more'\n" * 200
    chain = prefix_chain(chat(code))
    assert len(chain) == 1 + len(code) // CHUNK
    assert chain[-1].size > len(code)


@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {"indent": 1}])
def test_the_mark_for_the_cache_moves_on_and_the_prefix_stays(form):
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    text = {"type": "text", "text": 'say \\"cache_control\\": {} in JSON'}

    def body(*blocks):
        return json.dumps({"messages": [{"role": "user", "content": [one]} for one in blocks]}, **form)

    plain = prefix_chain(body(text, text).encode())
    for marked in ({**text, **mark}, {**mark, **text}, {"type": "text", **mark, "text": text["text"]}):
        assert prefix_chain(body(marked).encode()) == plain[:1]
    assert prefix_chain(body({**text, "text": "other"}).encode()) != plain[:1]


def test_the_recorded_turns_of_claude_code():
    turns = [json.loads(path.read_text())["body"] for path in sorted(RECORDED.glob("*.json"))]
    chains = [prefix_chain(json.dumps(turn).encode()) for turn in turns]
    for earlier, later in zip(chains, chains[1:], strict=False):
        assert later[: len(earlier)] == earlier
    assert len({root(chain) for chain in chains}) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages":',
        b'{"messages":7}',
        b'{"messages":[7]}',
        b"\xff\xfe",
        b'{"messages":[' + b"[" * 100_000,
    ],
)
def test_nonsense_has_no_chain(body):
    assert prefix_chain(body) == ()


def test_a_chain_is_bounded_and_ends_with_the_whole():
    huge = chat("x" * (LINKS + 10) * CHUNK, "a", "b")
    chain = prefix_chain(huge)
    assert len(chain) == LINKS + 1
    assert len(huge) - 200 < chain[-1].size < len(huge)
    assert chain[-1].digest != prefix_chain(chat("x" * (LINKS + 10) * CHUNK, "a", "c"))[-1].digest


def test_a_chain_comes_back_from_the_worker_process():
    chain = prefix_chain(chat("q", "a", "b"))
    assert pickle.loads(pickle.dumps(chain)) == chain


# --- the index ---


def chain_of(name, *sizes):
    """A chain with links of these sizes; names with a common beginning have common links."""
    total, links = 0, []
    for number, size in enumerate(sizes):
        total += size
        links.append(Prefix(name[: number + 1].encode().ljust(16), total))
    return tuple(links)


def test_what_was_sent_is_warm_there_and_nowhere_else():
    index = PrefixIndex()
    first, second = chain_of("xy", 100, 50), chain_of("xyz", 100, 50, 25)
    assert index.warm(A, first) == 0
    assert index.learn(A, first) == Belief(0, 0)
    assert index.warm(A, first) == index.warm(A, second) == 150
    assert index.warm(A, chain_of("xq", 100, 7)) == 100
    assert index.warm(B, second) == 0
    assert index.learn(A, second) == Belief(0, 0)  # nothing is sure before an answer has ended
    index.observed(A, first, Belief(0, 0), 0, 50)
    assert index.learn(A, second) == Belief(150, 2)
    index.forget(A)
    index.forget(B)
    assert index.warm(A, second) == 0


def test_what_many_share_outlives_the_ends_of_conversations():
    index = PrefixIndex(capacity=1000)
    for end in "abcdefgh":
        index.learn(A, chain_of("s" + end, 300, 200))
    assert index.warm(A, chain_of("sh", 300, 200)) == 500
    assert index.warm(A, chain_of("sg", 300, 200)) == 500
    assert index.warm(A, chain_of("sa", 300, 200)) == 300


def test_a_long_conversation_does_not_push_everything_out():
    index = PrefixIndex(capacity=1000)
    index.learn(A, chain_of("a", 400))
    long = chain_of("long conversation", *[100] * 17)
    index.learn(A, long)
    assert index.warm(A, chain_of("a", 400)) == 400
    assert index.warm(A, long) == 500


def served(index, target, chain, cached=0):
    index.observed(target, chain, index.learn(target, chain), cached, 100)


def test_a_loss_takes_with_it_all_that_was_used_longer_ago():
    index = PrefixIndex()
    for name in ("old", "lost", "new"):
        served(index, A, chain_of(name, 100))
    served(index, B, chain_of("old", 100))
    lost = chain_of("lost", 100)
    belief = index.learn(A, lost)
    index.observed(A, lost, belief, cached_tokens=0, input_tokens=30)
    assert [index.warm(A, chain_of(name, 100)) for name in ("old", "lost", "new")] == [0, 100, 100]
    assert index.warm(B, chain_of("old", 100)) == 100


@pytest.mark.parametrize(
    ("cached", "tokens"),
    [(20, 30), (30, 30), (99, 30), (0, 0)],
)
def test_what_was_found_changes_no_belief(cached, tokens):
    index = PrefixIndex()
    served(index, A, chain_of("old", 100))
    served(index, A, chain_of("here", 100))
    belief = index.learn(A, chain_of("here", 100))
    index.observed(A, chain_of("here", 100), belief, cached, tokens)
    assert index.warm(A, chain_of("old", 100)) == 100


def test_a_new_conversation_that_was_cold_proves_nothing():
    index = PrefixIndex()
    index.learn(A, chain_of("old", 100))
    new = chain_of("new", 100)
    index.observed(A, new, index.learn(A, new), 0, 30)
    index.observed(B, new, Belief(100, 9), 0, 30)  # a target that was never asked
    index.observed(A, (), Belief(100, 9), 0, 30)
    assert index.warm(A, chain_of("old", 100)) == 100


def test_requests_that_come_together_prove_nothing():
    """The second is sent while the first one's prompt is computed: that it finds nothing yet is no loss."""
    index = PrefixIndex()
    served(index, A, chain_of("old", 100))
    together = [index.learn(A, chain_of("new", 100)) for _ in range(3)]
    for belief in together:
        index.observed(A, chain_of("new", 100), belief, 0, 30)
    assert index.warm(A, chain_of("old", 100)) == 100
    assert index.learn(A, chain_of("new", 100)) == Belief(100, 4)


def test_a_target_that_tells_its_size():
    index = PrefixIndex()
    for name in "abc":
        index.learn(A, chain_of(name, 100))
    index.resize(A, 250)
    assert [index.warm(A, chain_of(name, 100)) for name in "abc"] == [0, 100, 100]


def test_sessions_are_remembered_and_bounded():
    index = PrefixIndex(sessions=2)
    assert index.last_target("s1") is None
    index.learn(A, (), session="s1")
    index.learn(B, (), session="s2")
    index.learn(B, (), session="s1")
    assert index.last_target("s1") == B
    index.learn(A, (), session="s3")
    assert [index.last_target(name) for name in ("s1", "s2", "s3")] == [B, None, A]
    index.learn(A, ())
    assert index.last_target("") is None


def test_targets_are_bounded():
    index = PrefixIndex(targets=2)
    for name in ("m1", "m2", "m3"):
        index.learn(("gpu", name), chain_of("x", 100))
    warm = [index.warm(("gpu", name), chain_of("x", 100)) for name in ("m1", "m2", "m3")]
    assert warm == [0, 100, 100]


NAMES = st.text("ab", min_size=1, max_size=12)
USES = st.lists(st.tuples(st.sampled_from((A, B)), NAMES, st.booleans()), max_size=60)


@given(USES, st.integers(50, 1500), st.integers(2, 24))
def test_it_is_bounded_and_never_has_a_link_without_those_before_it(uses, capacity, entries):
    index = PrefixIndex(capacity=capacity, entries=entries)
    for target, name, lost in uses:
        chain = chain_of(name, *[100] * len(name))
        belief = index.learn(target, chain)
        index.observed(target, chain, belief, 0 if lost else 100, 100)
        for cache in index._targets.values():
            assert len(cache.links) <= entries
            assert cache.size == sum(link.size for link in cache.links.values()) <= capacity
            held = {digest.strip().decode() for digest in cache.links}
            assert all(one[:-1] in held for one in held if len(one) > 1)
        warm = index.warm(target, chain)
        assert warm in {0, *(prefix.size for prefix in chain)}
        assert warm >= min(chain[0].size, capacity // 2 // 100 * 100, belief.warm)
    assert index.links <= 2 * entries


@given(st.lists(st.text(max_size=40), min_size=1, max_size=8), st.integers(0, 7))
def test_chains_agree_exactly_as_far_as_the_conversations_do(texts, cut):
    kept = texts[:cut]
    other = [*kept, "another", *texts[cut + 1 :]]
    same = next(
        (n for n, (one, its) in enumerate(zip(texts, other)) if one != its), min(len(texts), len(other))
    )
    assert common(prefix_chain(chat(*texts)), prefix_chain(chat(*other))) == same
