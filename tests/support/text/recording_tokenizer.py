"""A tokenizer that keeps the text of a prompt and reads control tokens in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.text.byte_tokenizer import ByteTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingTokenizer(ByteTokenizer):
    """Its tokens are the special tokens alone, by their places; ``texts`` are those it encoded."""

    pieces: tuple[bytes, ...] = ()
    texts: list[str] = field(default_factory=list)

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        parse_special: bool = False,
        literal: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> list[int]:
        self.texts.append(text)
        masked = list(text)
        for index in literal:
            masked[index] = "\0"
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
        return [self.special_tokens.index(found) for found in re.findall(pattern, "".join(masked))]
