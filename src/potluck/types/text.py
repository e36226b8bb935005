"""The tokenizer protocol, and the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """What one side of a chat said. ``role`` is ``system``, ``user``, ``assistant`` …"""

    role: str
    content: str


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

    @property
    def strips_prefix_space(self) -> bool:
        """Whether ``encode`` puts a space before a text that ``decode`` takes off again."""
        ...

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        parse_special: bool = False,
        literal: Sequence[int] = (),
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_bos``: begin as the model's own tokenizer does (which may add nothing).
        ``parse_special``: whether the texts of control tokens become those tokens; otherwise they
        are ordinary text, as a user's words must be.
        ``literal``: indices into ``text`` of characters that are no part of a control token even
        so (words of a user inside a rendered chat).
        Raises ``ParameterError`` for text that is not valid Unicode (lone surrogates).
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens. Any id is accepted."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``, taken as a whole text from its beginning.

        Control tokens vanish, invalid UTF-8 becomes U+FFFD, and where ``strips_prefix_space`` one
        leading space is taken off.
        """
        ...
