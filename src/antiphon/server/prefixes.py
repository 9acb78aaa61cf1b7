"""Which target has a prompt's beginning in its cache: prefixes of requests, and who was sent which.

Owns the hash chain of an encoded request body, and the belief about what each server still holds. Pure: no
clock, no I/O. It must not know slots, load or health: which target to take is server.placement's business.

    chain = prefix_chain(body)                 # once for a request, where it is planned
    index = PrefixIndex()
    index.warm(("gpu-1", "qwen"), chain)       -> 80412 bytes of this prompt are believed to be there
    belief = index.learn(("gpu-1", "qwen"), chain)               # when the request is sent there
    index.observed(("gpu-1", "qwen"), chain, belief, 0, 24_000)  # its usage: none of 24000 tokens was cached

Servers keep the tensors of past prompts and skip what a new prompt has in common with them, from the first
token on. vLLM and SGLang hold blocks (of 16 tokens in vLLM) and drop those that were not used for longest,
of one prompt the last ones first; the index does the same with its links. llama.cpp holds the last prompt of
each slot, newer ones also prompts that had to leave a slot, in host memory: there fewer and longer things
are lost at a time, which `observed` finds out.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

Target: TypeAlias = tuple[str, str]
"""An upstream's name, and its name for the model: each model of a server has a cache of its own."""

CHUNK = 4096
"""Bytes after which a long piece (tools, a document in a message, a text prompt) has a link of its own, so
that requests with only its beginning in common are seen to. 1,200 tokens: finer would change no choice."""

LINKS = 2048
"""Of one chain: 8 MiB of text. What is longer ends with one link for all the rest."""

CAPACITY = 4 * 1024 * 1024
"""Bytes of prompts that a server is taken to hold: 1.2 million tokens, as one large GPU has room for beside
a small model. Too much does little harm: a request goes where it is as cold as it would have been elsewhere,
and its usage then corrects the belief. Too little gives away what is warm."""

ENTRIES = 8192
"""Links that are kept for a target, 200 bytes of memory each: CAPACITY in pieces of 512 bytes."""

TARGETS = 64
"""Targets that are kept. There are fewer, except where clients may make up models' names."""

SESSIONS = 8192
"""Sessions whose last target is kept."""

_DIGEST = 16  # bytes: nobody finds two prompts with the same one
_SHARE = 2  # one chain takes at most a half of what is kept for a target

# What servers put before the messages, or what keeps their caches apart (vLLM's `cache_salt`). How long and
# how random the answer is changes nothing in the prompt; a model's name is part of the target.
_HEAD = ("cache_salt", "chat_template_kwargs", "reasoning_effort", "system", "tools")

# A mark for the server, no text: clients move it to the newest message in each turn (Claude Code does).
_CACHE_MARK = re.compile(rb'"cache_control"\s*:\s*\{[^{}]*\}')

# An image costs a server some 1,600 tokens however many bytes it has: as much as so many bytes of text.
_IMAGE = 5600
_IMAGE_DATA = re.compile(rb"[,\"][A-Za-z0-9+/]{64}")  # as it begins
_BASE64, _QUOTE = re.compile(rb"base64"), re.compile(rb'"')
_WITHIN = 256  # bytes after the word base64 (a media type and quotes may come before it)

_read = msgspec.json.Decoder(dict[str, Raw]).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode


class Prefix(Struct, frozen=True, array_like=True, gc=False):
    """The beginning of a prompt: the `digest` of everything up to here, and its `size`.

    `size` is in bytes of JSON, an image counted as the text that costs as much. `opens`: the conversation's
    first turn ends here; what comes before it is that of many conversations.
    """

    digest: bytes
    size: int
    opens: bool = False


Chain: TypeAlias = tuple[Prefix, ...]
"""The beginnings of one prompt, each longer than the one before; the last is the whole. Empty: unreadable."""


class _Role(Struct):
    role: str = "user"


_read_role = msgspec.json.Decoder(_Role).decode


def prefix_chain(body: bytes) -> Chain:
    """The chain of a request's body as an upstream gets it. Never raises; empty for what is not understood.

    Reads `messages` and what comes before them (Chat Completions, Messages), or a `prompt` (Completions).
    Of two turns of one conversation the earlier one's chain is the beginning of the later one's.
    """
    try:
        members = _read(body)
        head = [bytes(members[name]) for name in _HEAD if name in members]
        if "messages" in members:
            turns = _read_list(members["messages"])
            return _linked(head, turns, _first_turn(turns))
        if "prompt" in members:
            return _linked([*head, bytes(members["prompt"])], [], -1)
    except (ValueError, RecursionError):  # it is the upstream's to refuse
        return ()
    return ()


def root(chain: Chain) -> bytes:
    """What all turns of a conversation have in common and hardly another one has: a digest.

    That of its first turn, or of the first CHUNK of a text prompt.
    """
    for prefix in chain:
        if prefix.opens:
            return prefix.digest
    return chain[0].digest if chain else b""


def _first_turn(messages: list[Raw]) -> int:
    """The place of the first message that is not the operator's."""
    for number, message in enumerate(messages):
        if _read_role(message).role not in ("system", "developer"):
            return number
    return len(messages)


def _linked(head: list[bytes], turns: list[Raw], opening: int) -> Chain:
    """A link after each piece, and after each CHUNK within one. `opening` is the place of the first turn."""
    links = _Links()
    for piece in head:  # marks keep their places here, and there are no images
        links.add(piece)
    for number, message in enumerate(turns):
        text = _unmarked(memoryview(message))
        size = _size(text)
        if size == len(text):
            links.add(text, number == opening)
        else:
            links.add_whole(text, size, number == opening)
    return links.chain()


class _Links:
    """Hashes pieces, and keeps where it was."""

    def __init__(self) -> None:
        # By the CPU's own instructions: twice as fast as blake2b.
        self._hashed = hashlib.sha256(usedforsecurity=False)
        self._found: list[Prefix] = []
        self._size = 0
        self._last = False  # the last link is that of everything

    def add(self, text: bytes | memoryview, opens: bool = False) -> None:
        start, view, hashed = 0, memoryview(text), self._hashed
        for end in range(CHUNK, len(text), CHUNK):
            hashed.update(view[start:end])
            start = end
            if len(self._found) < LINKS:
                self._found.append(Prefix(hashed.digest()[:_DIGEST], self._size + end))
        hashed.update(view[start:])
        self._end(len(text), opens)

    def add_whole(self, text: bytes | memoryview, size: int, opens: bool) -> None:
        self._hashed.update(text)
        self._end(size, opens)

    def _end(self, size: int, opens: bool) -> None:
        self._size += size
        self._hashed.update(b"\0")  # which no JSON text has in it: pieces cannot run into each other
        self._last = len(self._found) < LINKS
        if self._last:
            self._found.append(Prefix(self._hashed.digest()[:_DIGEST], self._size, opens))

    def chain(self) -> Chain:
        if not self._last and self._found:
            self._found.append(Prefix(self._hashed.digest()[:_DIGEST], self._size))
        return tuple(self._found)


def _size(message: bytes | memoryview) -> int:
    """Its bytes, those of images counted by what they cost. Looks for the ends of data, not through it."""
    size, end = len(message), 0
    while size > CHUNK and (word := _BASE64.search(message, end)) is not None:
        data = _IMAGE_DATA.search(message, word.start(), word.start() + _WITHIN)
        if data is None:
            end = word.start() + _WITHIN  # not the next word: a text may be full of it
            continue
        quote = _QUOTE.search(message, data.end())
        if quote is None:
            break
        end = quote.start()
        size -= max(0, end - data.start() - _IMAGE)
    return size


def _unmarked(message: memoryview) -> bytes | memoryview:
    """Without its marks for the cache, as it is sent in the next turn. What has none is not copied."""
    if _CACHE_MARK.search(message) is None:
        return message
    parts = _CACHE_MARK.split(message)
    for number in range(1, len(parts)):
        parts[number - 1] = before = parts[number - 1].rstrip()
        if before.endswith(b","):
            parts[number - 1] = before[:-1]
        else:  # it came first in its object
            parts[number] = parts[number].lstrip().removeprefix(b",")
    return b"".join(parts)


class Belief(Struct, frozen=True):
    """What was sure of a target when a request was sent there.

    `warm` bytes of its prompt were of requests that had ended there; `used`: the target's count of requests
    when they were last used.
    """

    warm: int
    used: int


class PrefixIndex:
    """See the module. Every operation takes time in proportion to the chain.

    Bounded: so many bytes of prompts (`capacity`) and links (`entries`) for a target, so many targets and
    sessions, the least recently used go first.
    """

    def __init__(
        self,
        *,
        capacity: int = CAPACITY,
        entries: int = ENTRIES,
        targets: int = TARGETS,
        sessions: int = SESSIONS,
    ) -> None:
        self._capacity = capacity
        self._entries = entries
        self._most_targets = targets
        self._most_sessions = sessions
        self._targets: OrderedDict[Target, _Cache] = OrderedDict()
        self._sessions: OrderedDict[str, Target] = OrderedDict()

    @property
    def links(self) -> int:
        """How many are kept."""
        return sum(len(cache.links) for cache in self._targets.values())

    def warm(self, target: Target, chain: Chain) -> int:
        """Bytes of the prompt, of its `chain[-1].size`, that are believed to be in the target's cache."""
        cache = self._targets.get(target)
        return 0 if cache is None else cache.warm(chain)

    def learn(self, target: Target, chain: Chain, session: str = "") -> Belief:
        """The request goes there now. What is returned is for `observed`.

        Now rather than when its answer is there: requests that come together (sub-agents with one system
        prompt) should meet, and a server soon shares what it computes.
        """
        if session:
            self._sessions[session] = target
            self._sessions.move_to_end(session)
            if len(self._sessions) > self._most_sessions:
                self._sessions.popitem(last=False)
        cache = self._cache(target)
        belief = cache.sure(chain)
        cache.use(chain, self._entries)
        return belief

    def observed(
        self, target: Target, chain: Chain, belief: Belief, cached_tokens: int, input_tokens: int
    ) -> None:
        """The request has ended, and the target's own usage says that so many of its tokens were cached.

        `input_tokens` counts the cached ones too. Not for estimates. Where what was sure to be there was not,
        nothing that was used longer ago is there either: the target was restarted, or it has less room.
        """
        cache = self._targets.get(target)
        if cache is None or not chain or input_tokens <= 0:
            return
        found = chain[-1].size * min(1.0, cached_tokens / input_tokens)
        # Tokens are no bytes, and servers count whole blocks: less than a half is a loss.
        if found < belief.warm / 2:
            cache.drop_through(belief.used)
        cache.ended(chain)

    def last_target(self, session: str) -> Target | None:
        """Where the session's last request went, if that is known."""
        return self._sessions.get(session)

    def resize(self, target: Target, capacity: int) -> None:
        """The target has told how many bytes of prompts it keeps (3.5 for each of its tokens)."""
        cache = self._cache(target)
        cache.capacity = capacity
        cache.evict(self._entries)

    def forget(self, target: Target) -> None:
        """The target holds nothing: it was restarted, or its model was unloaded."""
        cache = self._targets.get(target)
        if cache is not None:
            cache.drop_through(cache.uses)

    def forget_upstream(self, upstream: str) -> None:
        """Nothing is warm there any more, whatever the model: its server was started anew."""
        for target in [target for target in self._targets if target[0] == upstream]:
            self.forget(target)

    def _cache(self, target: Target) -> _Cache:
        cache = self._targets.setdefault(target, _Cache(self._capacity))
        self._targets.move_to_end(target)
        if len(self._targets) > self._most_targets:
            self._targets.popitem(last=False)
        return cache


class _Link(Struct, gc=False):
    size: int  # bytes from the link before to this one
    used: int
    sure: bool = False  # a request with it has ended: it was computed


class _Cache:
    """One target's links, the least recently used first; none without all those before it in its chain.

    Of one request the first links count as used last. So what many requests share outlives their ends.
    """

    __slots__ = ("capacity", "links", "size", "uses")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.links: OrderedDict[bytes, _Link] = OrderedDict()
        self.size = 0
        self.uses = 0

    def warm(self, chain: Chain) -> int:
        return next((prefix.size for prefix in reversed(chain) if prefix.digest in self.links), 0)

    def sure(self, chain: Chain) -> Belief:
        # What is computed for the first time right now may be found by the next request, or not yet.
        for prefix in reversed(chain):
            link = self.links.get(prefix.digest)
            if link is not None and link.sure:
                return Belief(prefix.size, link.used)
        return Belief(0, 0)

    def ended(self, chain: Chain) -> None:
        for prefix in chain:
            link = self.links.get(prefix.digest)
            if link is not None:
                link.sure = True

    def use(self, chain: Chain, entries: int) -> None:
        self.uses += 1
        # Of a very long conversation only the beginning is kept: by that it is still found, and the others
        # are not pushed out.
        most = self.capacity // _SHARE
        kept = [prefix for prefix in chain[: entries // _SHARE] if prefix.size <= most]
        for number in range(len(kept) - 1, -1, -1):
            digest, size = kept[number].digest, kept[number].size
            link = self.links.get(digest)
            if link is None:
                size -= kept[number - 1].size if number else 0
                self.links[digest] = _Link(size, self.uses)
                self.size += size
            else:
                link.used = self.uses
                self.links.move_to_end(digest)
        self.evict(entries)

    def evict(self, entries: int) -> None:
        while self.size > self.capacity or len(self.links) > entries:
            self._drop_oldest()

    def drop_through(self, used: int) -> None:
        """Everything that was last used by that request or before."""
        while self.links and next(iter(self.links.values())).used <= used:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, link = self.links.popitem(last=False)
        self.size -= link.size
