"""The tokenizer protocol, and the messages of a chat."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """What one side of a chat said. ``role`` is ``system``, ``user``, ``assistant`` …

    ``name`` tells speakers of one role apart; a chat template that does not know it ignores it.
    """

    role: str
    content: str
    name: str | None = None


class ChatEnding(enum.Enum):
    """What a rendered chat ends with, and so what the model writes next.

    ``NEW_TURN`` opens the assistant's turn. ``CONTINUED`` leaves the last message open: the model
    goes on with it. ``CLOSED`` ends with the last message's end, as the template writes it.
    """

    NEW_TURN = "new turn"
    CONTINUED = "continued"
    CLOSED = "closed"


class ChatEncoder(Protocol):
    """Gives the tokens of a chat (see ``potluck.text.chat.encode_chat``).

    It may be called on another thread, and raises ``ChatTemplateError`` and ``ParameterError``.
    """

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        ending: ChatEnding = ChatEnding.NEW_TURN,
        reasoning_effort: str | None = None,
    ) -> list[int]:
        """The tokens of ``messages``, which end as ``ending`` says."""
        ...


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
        max_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_bos``: begin as the model's own tokenizer does (which may add nothing).
        ``parse_special``: whether the texts of control tokens become those tokens; otherwise they
        are ordinary text, as a user's words must be.
        ``literal``: indices into ``text`` of characters that are no part of a control token even
        so (words of a user inside a rendered chat).
        ``max_tokens``: give up on a text as soon as it is sure to have more.
        Raises ``ParameterError`` for text that is not valid Unicode (lone surrogates), and
        ``PromptTooLongError`` for text of more than ``max_tokens``.
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
