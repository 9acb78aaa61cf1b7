"""Whether an upstream's complaint means that the prompt does not fit, and how to say so.

Owns the wordings of context overflow, one row each. Clients act on two sentences only, Anthropic's own:
`prompt is too long` makes them compact, and `input length and max_tokens exceed context limit: A + B > C`
(with `max_tokens` in back quotes) makes them ask for less. They understand no other server's wording.

    overflow("The input (6000 tokens) is longer than the model's context length (4096 tokens).")
    -> "prompt is too long: 6000 tokens > 4096 maximum"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from antiphon.core.scrub import scrub

PHRASE: Final = "prompt is too long"


def normal(word: str) -> str:
    """A type or code without what servers spell differently: `Rate_Limit-Exceeded` is `ratelimitexceeded`."""
    return "".join(c for c in word.lower() if c.isalnum())


# Types and codes that say it outright; then no wording can say otherwise.
CODES: Final = frozenset(
    map(
        normal,
        (
            "context_length_exceeded",  # OpenAI, OpenRouter, vLLM behind many proxies
            "exceed_context_size_error",  # llama.cpp
            "ContextWindowExceededError",  # LiteLLM
            "context_window_exceeded",
            "model_context_window_exceeded",
            "token_limit_exceeded",  # OpenRouter
            "prompt_too_long",
            "input_too_long",
        ),
    )
)

# A refusal for a rate counts tokens as well.
EXCLUDED: Final = re.compile(
    r"rate[ _-]?limit|too many requests|throttl|tokens per (?:min|hour|day)", re.IGNORECASE
)

# One row for each wording, with who says it. A new one also needs its row in the test's table.
SIGNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"maximum context length (?:is|of)\b",  # OpenAI, vLLM, OpenRouter, SGLang
        r"exceeds? (?:the )?(?:model'?s )?maximum context length",  # SGLang, vLLM and proxies
        r"(?:your request has|your prompt contains(?: at least)?) [\d,]+ (?:input tokens|characters)",  # vLLM
        r"requested [\d,]+ output tokens",  # vLLM
        # vLLM; OpenAI's "max_tokens is too large" speaks of the longest answer and is no overflow.
        r"'max_tokens' or 'max_completion_tokens' is too large",
        r"longer than the maximum model length of",  # vLLM
        r"longer than the model'?s context length",  # SGLang, Together
        r"requested token count exceeds",  # SGLang
        r"exceeds? the available context size",  # llama.cpp
        r"context size has been exceeded",  # llama.cpp, all its slots at once
        r"exceeds? the context window",  # OpenAI
        r"input token count.{0,60}exceeds? the maximum",  # Gemini
        r"prompt token count.{0,60}exceeds? the limit",  # Copilot
        r"maximum prompt length is",  # xAI
        r"reduce the length of the (?:messages|input|prompt)",  # Groq, OpenAI
        r"exceeds? (?:the )?maximum allowed input length",  # OpenRouter
        r"greater than the context length",  # LM Studio
        r"loaded with context length of only",  # LM Studio
        r"context window exceeds limit",  # MiniMax
        r"exceeded model token limit",  # Kimi
        r"too large for model with [\d,]+ maximum context length",  # Mistral
        r"prompt too long",  # Ollama
        r"prompt exceeds max(?:imum)? length",  # GLM
        r"range of input length should be",  # DashScope
        r"prompt is too long",  # Anthropic
        r"exceed context limit",  # Anthropic, for max_tokens
        r"input is too long for requested model",  # Bedrock
        r"`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be <=|have less than)",  # TGI
    )
)

_N = r"(\d[\d,]{0,14})"


def _numbers(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern.replace("N#", _N), re.IGNORECASE) for pattern in patterns)


# The same four numbers in each server's words. The first row that matches gives the number.
WINDOW: Final = _numbers(
    r"maximum context length (?:is|of) (?:only )?N#",
    r"context length \(N#(?: tokens)?\)",
    r"maximum model length of N#",
    r"available context size \(N#",
    r"maximum prompt length is N#",
    r"maximum number of tokens allowed \(N#\)",
    r"maximum allowed input length of N#",
    r"exceeds? the limit of N#",
    r"model token limit: N#",
    r"model with N# maximum context length",
    r"context length of only N#",
    r"n_ctx: N#",
    r"input length should be \[\d+, N#\]",
    r"> N# maximum",
    r"context limit: [\d,]+ \+ [\d,]+ > N#",
    r"`max_new_tokens` must be <= N#",
    r"must have less than N# tokens",
)
PROMPT: Final = _numbers(
    r"(?:request has|(?:request|prompt) contains) N#(?: input)? tokens",
    r"prompt contains at least N# input tokens",
    r"messages resulted in N# tokens",
    r"N# tokens from the input messages",
    r"\(N# in the messages",
    r"input \(N# tokens\)",
    r"input length \(N#\)",
    r"input length N# exceeds",
    r"prompt \(length N#\)",
    r"request \(N# tokens\)",
    r"token count \(N#\)",
    r"token count of N#",
    r"too long: N# tokens",
    r"context limit: N# \+",
    r"n_keep: N#",
    r"given: N# `inputs` tokens",
    r"tokens\. given: N#",
)
COMPLETION: Final = _numbers(
    r"requested N# output tokens",
    r"N# tokens for the completion",
    r"N# in the (?:completion|output)",
    r"'max_completion_tokens' is too large: N#",
    r"context limit: [\d,]+ \+ N#",
    r"and N# `max_new_tokens`",
)
TOTAL: Final = _numbers(
    r"requested (?:about |a total of )?N# tokens",
    r"\(requested: N#\)",
)
# vLLM's tokenizer stops counting at the window: the number is a lower bound.
_AT_LEAST = re.compile(r"prompt contains at least", re.IGNORECASE)


def overflow(
    text: str, words: Iterable[str] = (), *, prompt: int | None = None, window: int | None = None
) -> str | None:
    """The sentence for the client, scrubbed, if `text` or one of `words` means context overflow, else None.

    `words` are the complaint's types and codes, `prompt` and `window` counts that it gave as fields.
    """
    if not by_code(words) and (EXCLUDED.search(text) or not any(sign.search(text) for sign in SIGNS)):
        return None
    window = window or _first(WINDOW, text)
    prompt = prompt or _first(PROMPT, text)
    completion = _first(COMPLETION, text)
    total = _first(TOTAL, text)
    if prompt is None and total is not None:
        prompt = total - (completion or 0)
    if prompt is not None and window is not None:
        # Equal is too long as well: llama.cpp wants room for one token of the answer.
        if prompt >= window:
            return f"{PHRASE}: {prompt} tokens > {window} maximum"
        if completion is not None and prompt + completion > window and not _AT_LEAST.search(text):
            return (
                f"input length and `max_tokens` exceed context limit: {prompt} + {completion} > {window}, "
                "decrease input length or `max_tokens` and try again"
            )
    said = scrub(text)
    if PHRASE in said:
        return said
    return f"{PHRASE}: {said}" if said else PHRASE


def by_code(words: Iterable[str]) -> bool:
    """Whether a type or code of the complaint says overflow."""
    return any(normal(word) in CODES for word in words)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    match = next((found for pattern in patterns if (found := pattern.search(text))), None)
    return int(match[1].replace(",", "")) if match else None
