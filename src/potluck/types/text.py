"""The tokenizer protocol, and the messages of a chat."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    ``parameters`` is the JSON schema of its arguments, an object. With ``is_strict`` the arguments
    of every call conform to the schema; otherwise the schema is only part of the prompt.
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
    """A message of a chat. ``role`` is ``system``, ``user``, ``assistant``, ``tool`` …

    ``name`` distinguishes speakers of one role; chat templates that do not support it ignore it.
    ``tool_calls`` are the calls of an assistant's message, after its content. A message with the
    role ``tool`` answers the call ``tool_call_id``. ``reasoning`` is an assistant's reasoning
    before its content; templates decide which reasoning is included in the prompt.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class ChatEnding(enum.Enum):
    """The end of a rendered chat, which determines what the model writes next.

    ``NEW_TURN`` opens the assistant's turn. ``CONTINUED`` leaves the last message open, so that the
    model continues it. ``CLOSED`` ends with the end of the last message as the template writes it.
    """

    NEW_TURN = "new turn"
    CONTINUED = "continued"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """The tokens of a chat, and the part of the model's turn that is in the prompt.

    The text of the turn shows whether the output begins within a reasoning block (``prompt_end`` of
    ``potluck.types.output.OutputFormat``). If the beginning of the model's turn cannot be
    determined from the template, the text includes some of the text before it.
    """

    tokens: Sequence[int]
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenList:
    """The bytes of each token of a vocabulary, which does not suffice to tokenize text.

    ``data[t]`` has the bytes of token ``t``; it is empty for control tokens, whose texts are in
    ``control``. ``end_tokens`` end a text.
    """

    data: Sequence[bytes]
    control: Mapping[int, str]
    end_tokens: tuple[int, ...]


class ChatEncoder(Protocol):
    """Builds the prompt of a chat (see ``potluck.text.chat.prompt_chat``).

    It may be called in another thread, and raises ``ChatTemplateError`` and ``ParameterError``.
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
        """Return the prompt of ``messages``, with the given ``ending``.

        ``thinks`` turns reasoning on or off if the template has a switch for it. The template adds
        ``tools`` to the prompt. ``template_variables`` are further variables of the template, of
        JSON types; they override all other sources of the same variable.
        """
        ...


class Tokenizer(Protocol):
    """Converts text to token ids and back. Thread-safe."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text (several for chat models)."""
        ...

    @property
    def closing_tokens(self) -> tuple[int, ...]:
        """The tokens that the model's own tokenizer appends to a text, as for embedding models.

        ``encode`` does not append them, since a text that will be continued does not end there.
        """
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The texts of control tokens, which decode to nothing."""
        ...

    @property
    def strips_prefix_space(self) -> bool:
        """Whether ``encode`` prepends a space to a text, which ``decode`` removes."""
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
        """Return the token ids of ``text``.

        - ``add_bos``: begin as the model's own tokenizer does (which may add nothing).
        - ``parse_special``: convert the texts of control tokens to those tokens; otherwise they are
          ordinary text, as user input must be.
        - ``literal``: indices into ``text`` of characters that are never part of a control token
          (user input within a rendered chat).
        - ``max_tokens``: stop as soon as the text is certain to have more tokens.

        Raise ``ParameterError`` if the text is not valid Unicode (lone surrogates), and
        ``PromptTooLongError`` if it has more than ``max_tokens``.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens. Any id is accepted."""
        ...

    def control_text(self, token: int) -> str:
        """Return the text of a control token in the vocabulary; empty for any other id."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, which are decoded as a complete text.

        Control tokens are omitted, invalid UTF-8 becomes U+FFFD, and one leading space is removed
        if ``strips_prefix_space`` is set.
        """
        ...


class PairEncoder(Protocol):
    """Converts a query and a document to the prompt of a model that scores documents."""

    def __call__(self, query: str, document: str, *, instruction: str | None = None) -> list[int]:
        """Return the tokens; ``instruction`` describes what makes a document relevant.

        Raise ``ChatTemplateError`` if the model has no template for it.
        """
        ...


class GapEncoder(Protocol):
    """Builds the prompts of a model that fills in the middle of a text."""

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end the filled-in text, in addition to those that end every text."""
        ...

    def prompt(
        self, tokenizer: Tokenizer, prefix: str, suffix: str, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the prompt for the text between ``prefix`` and ``suffix``.

        Raise the errors of ``Tokenizer.encode``.
        """
        ...


def is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogates: Python's mark of bytes in another encoding."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def levels_of(value: object) -> Iterator[Sequence[dict[str, object] | list[object]]]:
    """Yield the objects and arrays of each level of nesting in a value of JSON types, outermost
    first. A level is only computed when it is asked for.
    """
    level: list[dict[str, object] | list[object]]
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
