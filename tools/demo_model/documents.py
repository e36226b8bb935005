"""The stream of training documents: plain stories and chats, one per index, from one seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from .chats import Message, make_chat
from .grammar import make_story

PAD, BOS, EOS, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|bos|>",
    "<|eos|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
HELD_OUT_SEED = 990_001
"""The seed of the documents on which the loss is measured; training uses another."""

HELD_OUT_DOCUMENTS = 200

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)


def render_chat(messages: Sequence[Message]) -> str:
    """Render a conversation for the model; must stay equal to the result of ``CHAT_TEMPLATE``."""
    turns = (f"<|{message.role}|>\n{message.content}{END}\n" for message in messages)
    return BOS + "".join(turns)


def document(seed: int, index: int) -> str:
    """Return document ``index`` of the endless stream of ``seed``: half stories, half chats."""
    rng = random.Random(f"{seed}:{index}")
    if rng.random() < 0.5:
        return f"{BOS}{make_story(rng).text}{EOS}"
    return render_chat(make_chat(rng))


def documents(seed: int, start: int = 0) -> Iterator[str]:
    """Yield the documents of ``seed`` from number ``start`` on."""
    for index in itertools.count(start):
        yield document(seed, index)
