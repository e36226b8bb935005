"""The tokenizer protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. Safe for use by several threads."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the model has one."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text (several for chat models)."""
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The texts of control tokens, which decode to nothing."""
        ...

    def encode(self, text: str, *, add_bos: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        ``add_bos``: begin as the model's own tokenizer does (which may add nothing).
        ``parse_special``: whether the texts of control tokens become those tokens; otherwise they
        are ordinary text, as a user's words must be.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens. Any id is accepted."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; control tokens vanish, invalid UTF-8 becomes U+FFFD."""
        ...
