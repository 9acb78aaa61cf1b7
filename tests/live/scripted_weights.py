"""Weights that spell known answers, for a real server that loads Hugging Face folders: `FOLDER` is written.

python scripted_weights.py FOLDER        <- with a Python that has torch and transformers

Every token has one successor: the embedding is one-hot, attention and MLP are zero, and the output matrix
maps a token to its next one. So the prompt's last token decides the answer, and the chat template chooses
it. The server's scheduler, parsers and wire format are its own.

    last message            answer
    a tool result           `It is sunny in Paris.`
    LONG in it              `la lu lo le` without an end
    STOP in it              `one two three four`
    tools were given        `I will look that up.` and a call of get_weather
    PLAIN in it             `Just plain text, naïve 🙂 déjà?!`
    another one             `Let me think about it!` as thinking, then `Hello from a scripted model~`
"""

from __future__ import annotations

import sys

END, LOOP = "<|end|>", "<|again|>"  # the second is no token: the answer begins anew
ANSWERS = {
    "result": ["It", " is", " sunny", " in", " Paris", "."],
    "long": ["la", " lu", " lo", " le", LOOP],
    "stop": ["one", " two", " three", " four"],
    "tools": [
        *("I", " will", " look", " that", " up", ".\n"),
        *("<tool_call>", '\n{"name": "get_weather", "arguments": {', '"city": "', "Par", 'is"', "}}\n"),
        "</tool_call>",
    ],
    "plain": ["Just", " plain", " text", ",", " naïve", " 🙂", " déjà", "?!"],
    "think": [
        *("<think>", "Let", " me", " think", " about", " it", "!", "</think>"),
        *("\n\nHello", " from", " a", " scripted", " model", "~"),
    ],
}
TEMPLATE = (
    "{%- for message in messages -%}<|start|>{{ message.role }}\n"
    "{{ message.content if message.content is string else (message.content | tojson) }}{{ '\n' }}"
    "{%- endfor -%}{%- if tools -%}<|start|>tools\n{{ tools | tojson }}{{ '\n' }}{%- endif -%}"
    "{%- set last = messages[-1].content | string -%}"
    "{%- if messages[-1].role == 'tool' -%}<|result|>{%- elif 'LONG' in last -%}<|long|>"
    "{%- elif 'STOP' in last -%}<|stop|>{%- elif tools -%}<|tools|>{%- elif 'PLAIN' in last -%}<|plain|>"
    "{%- else -%}<|think|>{%- endif -%}"
)
SIZE = 512  # of the vocabulary, and so of a hidden state


def successors() -> dict[str, str]:
    """The next token of each. Raises ValueError where one would have two."""
    found: dict[str, str] = {}
    for name, answer in ANSWERS.items():
        path = [f"<|{name}|>", *(answer[:-1] if answer[-1] == LOOP else answer)]
        path.append(answer[0] if answer[-1] == LOOP else END)
        for token, following in zip(path, path[1:], strict=False):
            if found.setdefault(token, following) != following:
                raise ValueError(f"{token!r} is followed by {found[token]!r} and by {following!r}")
    return found


def write(folder: str) -> None:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    marks = ["<|start|>", END, *(f"<|{name}|>" for name in ANSWERS)]
    follows = successors()
    spoken = [token for token in dict.fromkeys([*follows, *follows.values()]) if token not in marks]

    # Bytes, so that every text has tokens, and the spoken words as tokens of their own.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_ = Tokenizer(models.BPE())
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    bytes_.train_from_iterator(
        [], trainers.BpeTrainer(vocab_size=SIZE, special_tokens=marks, initial_alphabet=alphabet)
    )
    bytes_.add_tokens([AddedToken(token, normalized=False) for token in spoken])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token=END, pad_token=END)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    number = {token: tokenizer.convert_tokens_to_ids(token) for token in [*marks, *spoken]}

    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=SIZE,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=number[END],
        bos_token_id=number[END],
        pad_token_id=number[END],
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        for norm in (model.model.norm, *(layer.input_layernorm for layer in model.model.layers)):
            norm.weight.fill_(1)
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight.fill_(1)
        model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
        for token in range(SIZE):  # what is never spoken ends the answer
            model.lm_head.weight[number[END], token] = 1
        for token, following in follows.items():
            model.lm_head.weight[number[END], number[token]] = 0
            model.lm_head.weight[number[following], number[token]] = 1
    model.save_pretrained(folder)


if __name__ == "__main__":
    write(sys.argv[1])
