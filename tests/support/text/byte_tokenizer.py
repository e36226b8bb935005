"""A tokenizer whose tokens are given bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTokenizer:
    """Token ``i`` stands for ``pieces[i]`` or for the text ``control[i]``; it can decode only."""

    pieces: tuple[bytes, ...]
    strips_prefix_space: bool = False
    eos_token_ids: tuple[int, ...] = ()
    closing_tokens: tuple[int, ...] = ()
    special_tokens: tuple[str, ...] = ()
    control: Mapping[int, str] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        parse_special: bool = False,
        literal: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def control_text(self, token: int) -> str:
        return self.control.get(token, "")

    def decode(self, tokens: Sequence[int]) -> str:
        data = b"".join(self.pieces[token] for token in tokens)
        if self.strips_prefix_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")
