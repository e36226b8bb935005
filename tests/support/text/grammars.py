"""A vocabulary of single bytes, and what grammars match over it."""

from __future__ import annotations

from potluck.grammars.matchers import Matchers
from potluck.grammars.vocabulary import Vocabulary
from potluck.types.text import TokenList

CONTROL = {256: "<|im_end|>", 257: "[TOOL]", 258: "<eos>"}

TOKENS = TokenList(
    data=[*(bytes([byte]) for byte in range(256)), b"", b"", b"", b'": "', b"true", b"  "],
    control=CONTROL,
    end_tokens=(258, 256),
)

BYTES = Vocabulary(TOKENS, len(TOKENS.data))


def matches(grammar: str, text: str) -> bool:
    """Whether ``text`` as a whole is one of the grammar's."""
    matcher = Matchers(BYTES).take(grammar)
    return matcher.accept_all([*text.encode()]) and matcher.is_accepting
