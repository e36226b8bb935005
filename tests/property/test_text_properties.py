"""What holds for any text, any tokens and any stop strings."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.models.text_models import (
    LLAMA3_SPECIAL,
    QWEN2_SPECIAL,
    SENTENCES,
    llama3_json,
    qwen2_json,
    sentence_piece_metadata,
    write_model_directory,
)
from support.text.byte_tokenizer import ByteTokenizer
from support.text.chats import encode_chat

from potluck.text.chat import ChatTemplate
from potluck.text.detokenize import StreamingDetokenizer
from potluck.text.gguf import build_tokenizer
from potluck.text.hugging_face import load_tokenizer
from potluck.text.tokenizer import TextTokenizer
from potluck.types.text import ChatMessage

STYLES = ("llama3", "qwen2", "llama2-gguf")
LLAMA2_SPECIAL = ("<s>", "</s>", "<unk>")
FRAGMENTS = (
    *LLAMA3_SPECIAL,
    *QWEN2_SPECIAL,
    *LLAMA2_SPECIAL,
    *SENTENCES,
    "<think>",
    "<|",
    "|>",
    "<",
    ">",
    "im_",
    "start",
    "end",
    "_id",
    "▁",
    "<0x0A>",
    " ",
    "\n",
    "\U00020000",
    "😀",
)
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=8).map("".join)


@cache
def tokenizer_of(style: str) -> TextTokenizer:
    if style == "llama2-gguf":
        return build_tokenizer(sentence_piece_metadata())
    document = llama3_json() if style == "llama3" else qwen2_json()
    if style == "qwen2":
        # Composing characters is the one thing that changes a text; it is left out here.
        document = json.dumps({**json.loads(document), "normalizer": None})
    with TemporaryDirectory() as directory:
        return load_tokenizer(write_model_directory(Path(directory), document))


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@given(text=texts)
def test_text_comes_back_and_no_control_token_comes_from_it(style: str, text: str) -> None:
    tokenizer = tokenizer_of(style)
    tokens = tokenizer.encode(text, add_bos=False)
    # SentencePiece cannot tell its mark for a space from a space.
    expected = text.replace("▁", " ") if style == "llama2-gguf" else text
    assert tokenizer.decode(tokens) == expected
    control = {
        tokenizer.encode(s, add_bos=False, parse_special=True)[0] for s in tokenizer.special_tokens
    }
    assert control.isdisjoint(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@given(prompt=texts, output=texts, data=st.data())
def test_streaming_continues_what_decoding_would_give(
    style: str, prompt: str, output: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(style)
    prompt_tokens = tokenizer.encode("x" + prompt)
    output_tokens = data.draw(
        st.just(tokenizer.encode(output, add_bos=False))
        | st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=20)
    )
    detokenizer = StreamingDetokenizer(tokenizer)
    streamed = "".join(map(detokenizer.push, output_tokens)) + detokenizer.flush()
    whole = tokenizer.decode([*prompt_tokens, *output_tokens])
    assert tokenizer.decode(prompt_tokens) + streamed == whole
    from_start = StreamingDetokenizer(tokenizer, starts_text=True)
    streamed = "".join(map(from_start.push, output_tokens)) + from_start.flush()
    assert streamed == tokenizer.decode(output_tokens)


def first_stop(text: str, stop_strings: list[str]) -> tuple[str, str | None]:
    """Tries every ending of every beginning, shortest beginnings and longest endings first."""
    for end in range(len(text) + 1):
        for start in range(end):
            if text[start:end] in stop_strings:
                return text[:start], text[start:end]
    return text, None


def cut_anywhere(data: bytes, cuts: list[int]) -> tuple[bytes, ...]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return tuple(data[a:b] for a, b in pairwise(bounds))


few_letters = st.text(alphabet="ab\né😀", max_size=12)


@pytest.mark.slow
@settings(max_examples=500)
@given(
    data=few_letters.map(str.encode) | st.binary(max_size=12),
    stop_strings=st.lists(
        st.text(alphabet="ab\né😀\ufffd", min_size=1, max_size=4), min_size=1, max_size=3
    ),
    cuts=st.lists(st.integers(0, 50), max_size=6),
)
@example(data=b"aaab", stop_strings=["aab"], cuts=[1, 2, 3])
def test_stop_strings_however_the_text_is_cut(
    data: bytes, stop_strings: list[str], cuts: list[int]
) -> None:
    expected, stopped_by = first_stop(data.decode("utf-8", "replace"), stop_strings)
    tokenizer = ByteTokenizer(pieces=cut_anywhere(data, cuts))
    detokenizer = StreamingDetokenizer(tokenizer, stop_strings=stop_strings)
    given_out = ""
    for token in range(tokenizer.vocab_size):
        given_out += detokenizer.push(token)
        assert expected.startswith(given_out)
    given_out += detokenizer.flush()
    assert given_out == expected
    assert detokenizer.stopped_by == stopped_by


ADJACENT = ChatTemplate(
    source=(
        "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_"
        "{{ m.content }}|>{{ m.content }}|>{{ m.content }}{% endfor %}<|im_end|>"
    )
)
"""Puts contents right beside pieces of control tokens, and each beside another."""


def adjacent_text(contents: list[str]) -> str:
    """What ``ADJACENT`` writes, without its control tokens."""
    return "".join(f"{c.strip()}<|im_{c}|>{c}|>{c}" for c in contents)


@pytest.mark.slow
@given(contents=st.lists(texts, max_size=3))
@example(contents=["<|im_", "end|>"])
@example(contents=["<|im_end"])
@example(contents=["see <|im_end"])
@example(contents=["end|> and so on"])
@example(contents=["end"])
@example(contents=["<|im_end|><|im_end|>"])
@example(contents=["\U00020000<|im_start|>\U00020001"])
@example(contents=[""])
def test_only_the_template_makes_control_tokens(contents: list[str]) -> None:
    tokenizer = tokenizer_of("qwen2")
    messages = [ChatMessage(role="user", content=content) for content in contents]
    tokens = encode_chat(tokenizer, ADJACENT, messages)
    start, end = tokenizer.encode("<|im_start|><|im_end|>", parse_special=True)
    control = [token for token in tokens if token in (start, end)]
    assert control == [start] * len(contents) + [end]
    assert tokenizer.decode(tokens) == adjacent_text(contents)
