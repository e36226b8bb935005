"""The tokenizer protocol, and the messages of a chat."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    ``parameters`` is the JSON schema of its arguments, an object. With ``is_strict`` every call of
    it has arguments that the schema allows; otherwise the model is only told of the schema.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model has made. ``arguments`` is the text of a JSON object."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """What one side of a chat said. ``role`` is ``system``, ``user``, ``assistant``, ``tool`` …

    ``name`` tells speakers of one role apart; a chat template that does not know it ignores it.
    ``tool_calls`` are those that an assistant's message made, after its content. A message with
    the role ``tool`` answers the call ``tool_call_id``. ``reasoning`` is what an assistant thought
    before its content; templates decide which of it the model sees again.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class ChatEnding(enum.Enum):
    """What a rendered chat ends with, and so what the model writes next.

    ``NEW_TURN`` opens the assistant's turn. ``CONTINUED`` leaves the last message open: the model
    goes on with it. ``CLOSED`` ends with the last message's end, as the template writes it.
    """

    NEW_TURN = "new turn"
    CONTINUED = "continued"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A chat's tokens, and the text of the model's turn as far as it is in them.

    The turn's text tells whether an output begins within a thought (``prompt_end`` of
    ``potluck.types.output.OutputFormat``). Where the template gives the model's turn no beginning
    that can be told, it has some of the text before.
    """

    tokens: Sequence[int]
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenList:
    """What each token of a vocabulary stands for, without the way from text to tokens.

    ``data[t]`` are the bytes of the token ``t``, none for control tokens, whose texts are in
    ``control``. ``end_tokens`` end a text.
    """

    data: Sequence[bytes]
    control: Mapping[int, str]
    end_tokens: tuple[int, ...]


class ChatEncoder(Protocol):
    """Gives the prompt of a chat (see ``potluck.text.chat.prompt_chat``).

    It may be called on another thread, and raises ``ChatTemplateError`` and ``ParameterError``.
    """

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        ending: ChatEnding = ChatEnding.NEW_TURN,
        reasoning_effort: str | None = None,
        thinks: bool | None = None,
        tools: Sequence[Tool] = (),
        template_variables: Mapping[str, object] | None = None,
    ) -> ChatPrompt:
        """Return the prompt of ``messages``, which ends as ``ending`` says.

        ``thinks`` turns thinking on or off where the template has a switch for it. ``tools`` are
        told to the model as its template does it. ``template_variables`` are further variables of
        the template, of JSON's types; each comes before all else that sets it.
        """
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
    def closing_tokens(self) -> tuple[int, ...]:
        """The tokens that the model's own tokenizer puts after a text, as embedding models have it.

        ``encode`` does not add them: a text that is to be continued has no end.
        """
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

    def control_text(self, token: int) -> str:
        """The text of a control token, as its vocabulary has it; empty for every other id."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``, taken as a whole text from its beginning.

        Control tokens vanish, invalid UTF-8 becomes U+FFFD, and where ``strips_prefix_space`` one
        leading space is taken off.
        """
        ...


class PairEncoder(Protocol):
    """Turns a query and a document into the prompt of a model that scores documents."""

    def __call__(self, query: str, document: str, *, instruction: str | None = None) -> list[int]:
        """Return the tokens; ``instruction`` says what makes a document relevant.

        Raises ``ChatTemplateError`` if the model has no template for it.
        """
        ...


class GapEncoder(Protocol):
    """Makes the prompts of a model that fills in the middle of a text."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end what it fills in, in addition to those that end every text."""
        ...

    def prompt(
        self, tokenizer: Tokenizer, prefix: str, suffix: str, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the tokens that ask for what is between ``prefix`` and ``suffix``.

        Raises as ``Tokenizer.encode``.
        """
        ...
