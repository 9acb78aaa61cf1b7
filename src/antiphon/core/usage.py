"""What a message has used: reported numbers first, an estimate for what nobody reported.

Owns the arithmetic between Chat Completions' counts (`prompt_tokens` includes the cache) and the Messages
API's (`input_tokens` does not). It never says zero for what it does not know.

    tally = Tally(input_tokens=9)
    tally.note(Usage(prompt=100, completion=2, cache_read=80))
    tally.usage   -> MessageUsage(input_tokens=20, output_tokens=2, cache_read_input_tokens=80)
"""

from __future__ import annotations

from antiphon.core.parts import MessageUsage, Usage

CHARACTERS_PER_TOKEN = 4


class Tally:
    """`input_tokens` is the estimate of the prompt that stands until the upstream reports it."""

    __slots__ = ("_counted", "_input_tokens", "_told", "characters", "deltas")

    def __init__(self, *, input_tokens: int) -> None:
        self._input_tokens = input_tokens
        self._counted = False
        self._told = Usage()
        self.characters = 0  # received, of every kind of block
        self.deltas = 0

    def note(self, told: Usage) -> None:
        """Take a report; what it does not say stays as it was, counts are for the whole message so far."""
        old = self._told
        self._told = Usage(
            old.prompt if told.prompt is None else told.prompt,
            old.completion if told.completion is None else told.completion,
            old.cache_read if told.cache_read is None else told.cache_read,
            old.cache_write if told.cache_write is None else told.cache_write,
            old.reasoning if told.reasoning is None else told.reasoning,
        )

    def guess_input(self, tokens: int) -> None:
        """A better estimate: what the conversation was before is known, the rest is estimated."""
        self._input_tokens = tokens

    def count_input(self, tokens: int) -> None:
        """The upstream's own tokenizer has counted the prompt: no estimate any more."""
        self._input_tokens = tokens
        self._counted = True

    @property
    def reported(self) -> bool:
        """The upstream told what it generated."""
        return self._told.completion is not None

    @property
    def usage(self) -> MessageUsage:
        """In Anthropic's terms: input, cache read and cache creation are disjoint."""
        told, estimated = self._told, []
        if told.prompt is None:
            prompt = self._input_tokens
            if not self._counted:
                estimated.append("input")
        else:
            prompt = max(0, told.prompt - (told.cache_read or 0) - (told.cache_write or 0))
        if told.completion is None:
            # Most servers send one token a delta; those that batch are caught by the length.
            completion = max(1, self.deltas, -(-self.characters // CHARACTERS_PER_TOKEN))
            estimated.append("output")
        else:
            completion = told.completion
        return MessageUsage(
            prompt, completion, told.cache_write, told.cache_read, told.reasoning, tuple(estimated)
        )
