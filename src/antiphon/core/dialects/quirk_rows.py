"""The rows: one for each server, or for a range of its versions where that makes a difference.

Owns the values and why they are so. A row says only what is otherwise than in the generic profile. Sources
are the servers' released code and their API references; where a comment names an answer of the server, it
was read from that server.

    VLLM.stream_usage   -> "continuous"
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.core.dialects.quirk_facts import Fields, Quirks

_SAME_EFFORT = (("low", "low"), ("medium", "medium"), ("high", "high"))
# Older releases of these servers take three words only and answer 400 to a fourth.
_CAPPED_EFFORT = (*_SAME_EFFORT, ("xhigh", "high"), ("max", "high"))
# A template that has no such switch ignores it; `reasoning_effort: none` is a 400 on older releases.
_TEMPLATE_ON: Fields = (("chat_template_kwargs", {"enable_thinking": True}),)
_TEMPLATE_OFF: Fields = (("chat_template_kwargs", {"enable_thinking": False}),)
_CONTINUE: Fields = (("add_generation_prompt", False), ("continue_final_message", True))
# The object that DeepSeek, Kimi, GLM and MiniMax share with the Messages API.
_THINKING_ON: Fields = (("thinking", {"type": "enabled"}),)
_THINKING_OFF: Fields = (("thinking", {"type": "disabled"}),)

GENERIC = Quirks(name="generic")

# A server's own `/v1/messages`: vLLM's, SGLang's, llama.cpp's, Ollama's. What else it is, it tells itself.
ANTHROPIC = Quirks(
    name="anthropic", speaks="messages", auth="x-api-key", path="/messages", tokenizer="count_tokens"
)
# The API itself.
ANTHROPIC_API = replace(ANTHROPIC, name="anthropic-api", unsigned_thinking=False, billing_header=True)

# --- Servers to run oneself -----------------------------------------------------------------------

VLLM = Quirks(
    name="vllm",
    probe="health",
    native_messages=True,
    send_top_k=True,
    stream_usage="continuous",
    prefill=_CONTINUE,
    # From 0.16 to 0.20 it reads only `reasoning`, from 0.12 to 0.14 and from 0.33 on either: both are safe.
    reasoning_fields_out=("reasoning_content", "reasoning"),
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    thinking_on=_TEMPLATE_ON,
    thinking_off=_TEMPLATE_OFF,
    # `thinking_token_budget` is a 400 unless the server was started with a reasoning configuration.
    tokenizer="tokenize",
    # In development mode only; otherwise it tells its limit nowhere, not even in `/metrics`.
    slots_report="server_info",
)

# Up to 0.11.0: no `/v1/messages` yet, and `reasoning_content` is the only name.
VLLM_0_11 = replace(
    VLLM, name="vllm-0.11", native_messages=False, reasoning_fields_out=("reasoning_content",)
)

SGLANG = Quirks(
    name="sglang",
    probe="health",
    native_messages=True,
    send_top_k=True,
    stream_usage="continuous",
    prefill=_CONTINUE,
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    thinking_on=_TEMPLATE_ON,
    thinking_off=_TEMPLATE_OFF,
    tokenizer="tokenize",
    slots_report="server_info",
)

LLAMACPP = Quirks(
    name="llamacpp",
    probe="health",
    native_messages=True,
    send_top_k=True,
    continues=True,
    # An object in `tool_choice` silently behaves as `auto`.
    tool_choice="required_only",
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    thinking_on=_TEMPLATE_ON,
    thinking_off=_TEMPLATE_OFF,
    thinking_budget_field="reasoning_budget_tokens",
    # It notices a client that left only when it writes: with progress chunks an abandoned prefill ends
    # after one batch, without them it runs to its end (measured: 0.2 to 1 s against 4 to 18 s).
    members=(("return_progress", True),),
    tokenizer="input_tokens",
    slots_report="props",
    # Measured: a prefill goes on for 6 to 58 s after its client left.
    cancels_everywhere=False,
    drain_report="slots",
)

OLLAMA = Quirks(
    name="ollama",
    native_messages=True,
    images="base64",
    reasoning_fields_out=("reasoning",),
    tool_choice="ignored",
    parallel_tool_calls=False,
    # No effort: every word but `none` is a 400 ("does not support thinking") for a model that cannot think.
    thinking_off=(("reasoning_effort", "none"),),
    cancels_everywhere=False,
)

LMSTUDIO = Quirks(
    name="lmstudio",
    native_messages=True,  # since 0.4.1
    send_top_k=True,
    images="base64",
    # Its reference has the strings `none`, `auto`, `required`; an object is a 400.
    tool_choice="required_only",
    # It runs llama.cpp, whose prefill outlives its client.
    cancels_everywhere=False,
)

# --- Hosted APIs ----------------------------------------------------------------------------------

OPENAI = Quirks(
    name="openai",
    token_limit_field="max_completion_tokens",  # noqa: S106 - a name
    max_stop=4,
    user_field="safety_identifier",
    cache_key_field="prompt_cache_key",
    reasoning_when="never",
    strict_tools=True,
    tool_name_limit=64,
    # No effort: models that do not reason answer 400 to the field.
)

# The base URL is `https://NAME.openai.azure.com/openai/v1`, or an older one with `?api-version=` in it.
AZURE = replace(OPENAI, name="azure", auth="api-key", user_field=None)

OPENROUTER = Quirks(
    name="openrouter",
    send_top_k=True,
    user_field="user",
    cache_control=True,
    reasoning_fields_out=("reasoning",),
    # It routes to servers that have this limit.
    tool_name_limit=64,
    effort_field="reasoning.effort",
    effort_words=(*_SAME_EFFORT, ("xhigh", "xhigh"), ("max", "xhigh")),
    thinking_on=(("reasoning", {"enabled": True}),),
    thinking_off=(("reasoning", {"enabled": False}),),
    thinking_budget_field="reasoning.max_tokens",
)

DEEPSEEK = Quirks(
    name="deepseek",
    max_stop=16,
    response_format=False,  # `json_object` only
    # 400 "The `reasoning_content` in the thinking mode must be passed back to the API."; empty will do.
    reasoning_missing="",
    # 400 "Thinking mode does not support this tool_choice".
    thinks_when_forced=False,
    tool_name_limit=64,
    effort_field="reasoning_effort",
    # Its own table of what it makes of a word: there are three efforts.
    effort_words=(("low", "low"), ("medium", "high"), ("high", "high"), ("xhigh", "high"), ("max", "max")),
    thinking_on=_THINKING_ON,
    thinking_off=_THINKING_OFF,
)

KIMI = Quirks(
    name="kimi",
    token_limit_field="max_completion_tokens",  # noqa: S106 - a name
    # Fixed by the platform for its thinking models; any other value is a 400.
    sampling=False,
    max_stop=5,
    cache_key_field="prompt_cache_key",
    prefill_mark="partial",
    # 400 "thinking is enabled but reasoning_content is missing in assistant tool call message at index N";
    # an empty string counts as missing.
    reasoning_missing=" ",
    # 400 "tool_choice specified is incompatible with thinking enabled".
    thinks_when_forced=False,
    # What its models are trained on: another form in the history makes them miss calls.
    tool_id_form="functions",
    thinking_on=_THINKING_ON,
    thinking_off=_THINKING_OFF,
)

GLM = Quirks(
    name="glm",
    response_format=False,  # `json_object` only
    # "Preserved thinking": it wants the reasoning of every turn back.
    reasoning_when="always",
    # Without it the arguments of a call come in one piece at its end.
    tools_members=(("tool_stream", True),),
    tool_choice="ignored",  # only `auto` is documented
    thinking_on=_THINKING_ON,
    thinking_off=_THINKING_OFF,
)

QWEN = Quirks(
    name="qwen",
    send_top_k=True,
    cache_control=True,
    prefill_mark="partial",
    # 400 "The tool_choice parameter does not support being set to required or object in thinking mode".
    thinks_when_forced=False,
    thinking_on=(("enable_thinking", True),),
    thinking_off=(("enable_thinking", False),),
    thinking_budget_field="thinking_budget",
)

MINIMAX = Quirks(
    name="minimax",
    token_limit_field="max_completion_tokens",  # noqa: S106 - a name
    least_temperature=0.01,  # its range is (0, 1]
    # Reasoning comes as `<think>` text in the content, and the content must come back as it was.
    reasoning_tags_out=True,
    reasoning_when="always",
    tool_choice="ignored",  # not in its schema
    thinking_on=(("thinking", {"type": "adaptive"}),),
    thinking_off=_THINKING_OFF,
)

MISTRAL = Quirks(
    name="mistral",
    stream_usage="none",
    prefill_mark="prefix",
    reasoning_when="never",
    tool_id_form="alnum9",
)

GEMINI = Quirks(
    name="gemini",
    max_stop=5,
    reasoning_when="never",
    tool_name_limit=64,
    # 400 "Function call is missing a thought_signature" for calls that it did not make itself; this is the
    # value that Google's documentation gives for those.
    call_extra={"google": {"thought_signature": "skip_thought_signature_validator"}},
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    # `none` is a 400 for the models that cannot stop thinking: no `thinking_off`.
)

GROQ = Quirks(
    name="groq",
    token_limit_field="max_completion_tokens",  # noqa: S106 - a name
    max_stop=4,
    user_field="user",
    reasoning_fields_out=("reasoning",),
    tool_name_limit=64,
    # No effort: each family of models has words of its own and refuses the others'.
)

TOGETHER = Quirks(name="together", send_top_k=True, reasoning_fields_out=("reasoning",))

XAI = Quirks(
    name="xai",
    token_limit_field="max_completion_tokens",  # noqa: S106 - a name
    # Its chat completions have no place for reasoning that comes back.
    reasoning_when="never",
    # No effort: some of its models refuse the field.
)

ROWS = (
    GENERIC,
    ANTHROPIC,
    ANTHROPIC_API,
    VLLM,
    VLLM_0_11,
    SGLANG,
    LLAMACPP,
    OLLAMA,
    LMSTUDIO,
    OPENAI,
    AZURE,
    OPENROUTER,
    DEEPSEEK,
    KIMI,
    GLM,
    QWEN,
    MINIMAX,
    MISTRAL,
    GEMINI,
    GROQ,
    TOGETHER,
    XAI,
)

OLDER: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {"vllm": (((0, 11, 1), "vllm-0.11"),)}
"""By a server's name, the oldest first: the version that ends a row's reign, and that row's name."""
