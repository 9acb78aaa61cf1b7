"""Every wording of context overflow, word for word as its server says it, and what is none."""

import re

import pytest

from antiphon.core import overflow as module
from antiphon.core.overflow import COMPLETION, PROMPT, SIGNS, TOTAL, WINDOW, normal, overflow

LONG = "prompt is too long: {} tokens > {} maximum"
LESS = "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or `max_tokens` and try again"
SAID = "prompt is too long: {}"  # no numbers: the upstream's own words

WORDINGS = [
    # (server, text, expected; SAID stands for the phrase and the text itself)
    ("OpenAI", "This model's maximum context length is 8192 tokens. However, your messages resulted in 10000 tokens. Please reduce the length of the messages.", LONG.format(10000, 8192)),
    ("OpenAI", "This model's maximum context length is 4097 tokens. However, you requested 4927 tokens (3927 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.", LESS.format(3927, 1000, 4097)),
    ("OpenAI", "This model's maximum context length is 4097 tokens. However, you requested 6000 tokens (5000 in the messages, 1000 in the completion).", LONG.format(5000, 4097)),
    ("OpenAI", "Your input exceeds the context window of this model. Please adjust your input and try again.", SAID),
    ("vLLM 0.10", "This model's maximum context length is 4096 tokens. However, your request has 6000 input tokens. Please reduce the length of the input messages.", LONG.format(6000, 4096)),
    ("vLLM 0.10", "'max_tokens' or 'max_completion_tokens' is too large: 3000. This model's maximum context length is 4096 tokens and your request has 2000 input tokens (3000 > 4096 - 2000).", LESS.format(2000, 3000, 4096)),
    ("vLLM 0.18", "This model's maximum context length is 4096 tokens. However, you requested 3000 output tokens and your prompt contains 2000 input tokens, for a total of 5000 tokens (5000 > 4096).", LESS.format(2000, 3000, 4096)),
    ("vLLM 0.18", "This model's maximum context length is 4096 tokens. However, you requested 10 output tokens and your prompt contains 4090 input tokens, for a total of 4100 tokens.", LESS.format(4090, 10, 4096)),
    ("vLLM 0.33", "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which exceeds this limit even without any output tokens.", LONG.format(4097, 4096)),
    # A lower bound is no number to compute with: less output would be refused again.
    ("vLLM 0.33", "This model's maximum context length is 4096 tokens. However, you requested 1000 output tokens and your prompt contains at least 3097 input tokens, for a total of at least 4097 tokens.", SAID),
    ("vLLM 0.33", "You passed a prompt that is long: your prompt contains 90000 characters (more than 65536 characters, which is the upper bound for 4096 input tokens).", SAID),
    ("vLLM", "Input length (9000) exceeds model's maximum context length (8192).", LONG.format(9000, 8192)),
    ("vLLM", "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that max_model_len is no smaller.", LONG.format(5000, 4096)),
    ("SGLang", "The input (5000 tokens) is longer than the model's context length (4096 tokens).", LONG.format(5000, 4096)),
    ("SGLang", "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: 3000 tokens from the input messages and 2000 tokens for the completion. Please reduce the number.", LESS.format(3000, 2000, 4096)),
    ("SGLang", "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 9000 tokens: 8000 tokens from the input messages and 1000 tokens for the completion.", LONG.format(8000, 4096)),
    ("SGLang", "Requested token count exceeds what is possible.", SAID),
    ("llama.cpp", "request (6031 tokens) exceeds the available context size (4096 tokens), try increasing it", LONG.format(6031, 4096)),
    ("llama.cpp", "request (4096 tokens) exceeds the available context size (4096 tokens), try increasing it", LONG.format(4096, 4096)),
    ("llama.cpp", "the request exceeds the available context size. try increasing the context size or enable context shift", SAID),
    ("llama.cpp", "Context size has been exceeded.", SAID),
    ("Ollama", "prompt too long; exceeded max context length by 120 tokens", SAID),
    ("LM Studio", "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 31236>= n_ctx: 4096). Try to load the model with a larger context length.", LONG.format(31236, 4096)),
    ("LM Studio", "Trying to keep the first 30159 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.", SAID),
    ("Gemini", "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", LONG.format(1196265, 1048575)),
    ("xAI", "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", LONG.format(537812, 131072)),
    ("Groq", "Please reduce the length of the messages or completion.", SAID),
    ("OpenRouter", "This endpoint's maximum context length is 131072 tokens. However, you requested about 264016 tokens (263816 of text input, 200 in the output). Please reduce the length of either one.", LONG.format(263816, 131072)),
    ("OpenRouter", "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens (100000 of text input, 8000 of tool input, 32000 in the output).", LESS.format(108000, 32000, 131072)),
    ("Poolside", "Input length 140,000 exceeds the maximum allowed input length of 131,072 tokens.", LONG.format(140000, 131072)),
    ("Copilot", "prompt token count of 150000 exceeds the limit of 128000", LONG.format(150000, 128000)),
    ("Kimi", "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)", LONG.format(140000, 131072)),
    ("MiniMax", "invalid params, context window exceeds limit (2013)", SAID),
    ("Mistral", "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length", LONG.format(40000, 32768)),
    ("DashScope", "Range of input length should be [1, 30720]", SAID),
    ("GLM", "Prompt exceeds max length", SAID),
    ("Bedrock", "Input is too long for requested model.", SAID),
    ("Anthropic", "prompt is too long: 213462 tokens > 200000 maximum", LONG.format(213462, 200000)),
    ("Anthropic", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again", LESS.format(190000, 20000, 200000)),
    ("TGI", "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`", LESS.format(4000, 500, 4096)),
    ("TGI", "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000", LONG.format(5000, 4095)),
]  # fmt: skip

NONE = [
    "Rate limit reached for model `x` on tokens per min (TPM): Limit 6000, Requested 8000. Please reduce the length of the messages.",
    "Request too large for model `x` on tokens per minute (TPM): Limit 6000, please reduce the length of the prompt",
    "Too many requests: maximum context length is 4096 tokens",
    "ThrottlingException: prompt is too long to be served now",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
    "The model `long-context-4096` does not exist.",
    "messages.1.content: Field required",
    "string too long. Expected a string with maximum length 10485760",
    "",
]  # fmt: skip


@pytest.mark.parametrize(("server", "text", "expected"), WORDINGS)
def test_wording(server, text, expected):
    assert overflow(text) == expected.format(text)
    assert overflow(text.upper()) is not None
    assert overflow(f"litellm.BadRequestError: {text} (request 1)") is not None


@pytest.mark.parametrize("text", NONE)
def test_no_overflow(text):
    assert overflow(text) is None


@pytest.mark.parametrize("sign", SIGNS, ids=[sign.pattern for sign in SIGNS])
def test_every_sign_has_a_wording(sign):
    assert any(sign.search(text) for _, text, _ in WORDINGS)


@pytest.mark.parametrize("table", ["WINDOW", "PROMPT", "COMPLETION", "TOTAL"])
def test_every_number_has_a_wording(table, monkeypatch):
    rows = getattr(module, table)
    for row in rows:
        with monkeypatch.context() as patch:
            patch.setattr(module, table, tuple(other for other in rows if other is not row))
            changed = any(overflow(text) != expected.format(text) for _, text, expected in WORDINGS)
        # A number that no verdict hangs on must at least be one that somebody says.
        assert changed or any(row.search(text) for _, text, _ in WORDINGS), row.pattern
    assert all(isinstance(row, re.Pattern) for row in (*WINDOW, *PROMPT, *COMPLETION, *TOTAL))


@pytest.mark.parametrize(
    "code",
    [
        "context_length_exceeded",
        "exceed_context_size_error",
        "ContextWindowExceededError",
        "PROMPT_TOO_LONG",
        "token-limit-exceeded",
    ],
)
def test_a_code_says_it_in_any_words(code):
    assert overflow("rate limit, so to say", ["invalid_request_error", code]) == SAID.format(
        "rate limit, so to say"
    )
    assert overflow("", [code]) == "prompt is too long"


def test_fields_go_before_the_text():
    text = "request (1 tokens) exceeds the available context size (2 tokens)"
    assert overflow(text, prompt=6031, window=4096) == LONG.format(6031, 4096)
    assert overflow("too big", ["exceed_context_size_error"], prompt=6031, window=4096) == LONG.format(
        6031, 4096
    )


def test_numbers_that_do_not_add_up_are_not_told():
    text = "This model's maximum context length is 4096 tokens. However, your request has 12 input tokens."
    assert overflow(text) == SAID.format(text)


def test_the_text_is_scrubbed_and_the_phrase_not_repeated():
    assert overflow("Context size has been exceeded at 10.0.0.1") == SAID.format(
        "Context size has been exceeded at [address]"
    )
    assert overflow("Sorry, the prompt is too long") == "Sorry, the prompt is too long"


def test_spelling_of_words():
    assert normal("Rate_Limit-Exceeded") == normal("RateLimitExceeded") == "ratelimitexceeded"
