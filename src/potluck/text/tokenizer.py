"""The tokenizer for all formats of model files.

A ``tokenizers.Tokenizer`` does the heavy work (normalization, pre-tokenization, merges) on
stretches of ordinary text, a slice at a time (``potluck.text.slices``). Everything that depends on
the position or the call is done here: added tokens, the token that begins a text, and the space
that SentencePiece puts before a text. So the library's object is never changed after construction,
and any number of threads can use it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from potluck.errors import ParameterError, PromptTooLongError
from potluck.text.added_tokens import AddedToken, AddedTokens
from potluck.text.pieces import SPACE_MARK, Notation, byte_piece, piece_bytes
from potluck.text.slices import SLICE_CHARACTERS, SlicedEncoder, marks_spaces, normalizer_steps

if TYPE_CHECKING:
    import tokenizers


_PART_CHARACTERS = 64 * 1024

_COMPOSED_SHRINKS = 4
"""Normalization form C makes UTF-8 at most three times shorter (U+212A, 3 bytes, becomes K)."""


class _MinTokens:
    """The bound for one vocabulary. Immutable.

    It is a lower bound on the number of tokens of a text, from its bytes alone. No token represents
    more bytes than the longest vocabulary entry that contains the byte. So a byte that occurs in
    entries of up to L bytes accounts for at least 1/L of a token, and the sum over a text is at
    most its number of tokens. The bound is far below the true number for prose, and close to it for
    long texts without meaning, such as digits or one repeated character.
    """

    def __init__(
        self,
        pieces: Iterable[tuple[bytes, int]],
        *,
        composes: bool,
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        """``pieces`` are all tokens: the bytes in each, and the most bytes of text that it covers.

        ``composes``: whether texts are converted to normalization form C first. ``left_out``: bytes
        without a token, any number of which may be dropped.
        """
        longest = [1] * 256
        for piece, num_bytes in pieces:
            for byte in set(piece):
                if longest[byte] < num_bytes:
                    longest[byte] = num_bytes
        self._share = tuple(0 if b in left_out else 1 / longest[b] for b in range(256))
        self._composes = composes

    def least_tokens(self, text: str, enough: int) -> int:
        """Return a lower bound on the number of tokens of ``text``; counting stops above
        ``enough``.
        """
        shrinks = _COMPOSED_SHRINKS if self._composes and not text.isascii() else 1
        total = 0.0
        for start in range(0, len(text), _PART_CHARACTERS):
            part = text[start : start + _PART_CHARACTERS].encode("utf-8")
            total += sum(part.count(byte) * self._share[byte] for byte in set(part))
            if total > (enough + 1) * shrinks:
                break
        return int(total / shrinks * (1 - 1e-9))  # 1e-9: far above the sum's rounding error


class PrefixSpace(enum.Enum):
    """The places where ``▁`` is inserted before text."""

    NEVER = "never"
    FIRST = "first"
    """At the beginning of a text, unless it starts with a space."""
    EACH_UNLESS_PRESENT = "each unless present"
    """Also after every added token, unless a space follows."""
    EACH = "each"
    """Also after every added token, unconditionally."""
    EACH_BUT_WORDS = "each but words"
    """As ``EACH``, but not after user-defined pieces, which include the mark themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """How a text begins and ends; with ``add_bos``, ``encode`` starts with ``bos_tokens``.

    ``closing_tokens``: see ``potluck.types.text.Tokenizer``.
    """

    bos_token_id: int | None
    bos_tokens: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    closing_tokens: tuple[int, ...] = ()


class TextTokenizer:
    """A ``potluck.types.text.Tokenizer``. Immutable; safe for use by several threads.

    ``model`` must have no added tokens and no post-processor. ``vocab_size`` is one more than the
    largest id.

    If the vocabulary has neither a character nor its bytes, the character becomes the unknown
    token; text that is not parsed for control tokens never produces any other. ``unknown`` is its
    id; if it is None, the one that ``model`` names is used. ``normalize`` changes ordinary text
    before everything else; a stretch that becomes empty has no tokens. ``bytes_only`` are tokens
    whose bytes are not UTF-8, by id: the library cannot represent them, and no text contains them.
    """

    def __init__(
        self,
        *,
        model: tokenizers.Tokenizer,
        added: Iterable[AddedToken],
        notation: Notation,
        prefix_space: PrefixSpace,
        strips_prefix_space: bool,
        vocab_size: int,
        boundaries: Boundaries,
        unknown: int | None = None,
        normalize: Callable[[str], str] | None = None,
        bytes_only: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._bytes_only = bytes_only
        self._encoder = SlicedEncoder(model)
        self._normalize = normalize
        self._added = AddedTokens(added)
        self._notation = notation
        self._prefix_space = prefix_space
        self._bos_tokens = boundaries.bos_tokens
        self.strips_prefix_space = strips_prefix_space
        self.vocab_size = vocab_size
        self.eos_token_ids = boundaries.eos_token_ids
        self.closing_tokens = boundaries.closing_tokens
        self.special_tokens = tuple(t.text for t in self._added.control if t.text)
        named = getattr(model.model, "unk_token", None)
        unknown_id = model.token_to_id(named) if unknown is None and named else unknown
        # Some models declare their eos as the unknown token, without ever needing one.
        bounds = {boundaries.bos_token_id, *boundaries.eos_token_ids}
        self._never_from_text = frozenset(
            token.token
            for token in self._added.control
            if token.token != unknown_id or unknown_id in bounds
        )
        self._min_tokens: _MinTokens | None = None

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        parse_special: bool = False,
        literal: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> list[int]:
        """Return the token ids of ``text``; see ``potluck.types.text.Tokenizer.encode``."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ParameterError(
                "text",
                f"the text is not valid Unicode: a lone surrogate at character {error.start}",
                hint="pass text that can be encoded as UTF-8",
            ) from error
        if max_tokens is not None and len(text) > max(SLICE_CHARACTERS, max_tokens):
            _require_room(self._least_tokens(text, max_tokens), max_tokens)
        tokens = list(self._bos_tokens) if add_bos else []
        prefixed = self._prefix_space is not PrefixSpace.NEVER
        for part in self._added.split(text, parse_control=parse_special, literal=literal):
            if isinstance(part, AddedToken):
                is_word = self._prefix_space is PrefixSpace.EACH_BUT_WORDS and not part.control
                if is_word and prefixed:
                    tokens += next(self._encoder.encode(SPACE_MARK))
                tokens.append(part.token)
                prefixed = not is_word and self._prefix_space not in (
                    PrefixSpace.NEVER,
                    PrefixSpace.FIRST,
                )
                _require_room(len(tokens), max_tokens)
            elif stretch := part if self._normalize is None else self._normalize(part):
                if prefixed:
                    stretch = self._with_prefix(stretch)
                for ids in self._encoder.encode(stretch):
                    tokens += self._without_control(ids)
                    _require_room(len(tokens), max_tokens)
                prefixed = False
        return tokens

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens and unknown ids."""
        if not 0 <= token < self.vocab_size:
            return b""
        if added := self._added.by_id.get(token):
            return b"" if added.control else added.text.encode("utf-8")
        piece = self._model.id_to_token(token)
        if piece is None:
            return self._bytes_only.get(token, b"")
        return piece_bytes(piece, self._notation)

    def control_text(self, token: int) -> str:
        """Return the text of a control token; empty for every other id."""
        added = self._added.by_id.get(token)
        return added.text if added is not None and added.control else ""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` as a whole text; see
        ``potluck.types.text.Tokenizer.decode``.
        """
        data = b"".join(map(self.token_bytes, tokens))
        if self.strips_prefix_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def _with_prefix(self, text: str) -> str:
        always = (PrefixSpace.EACH, PrefixSpace.EACH_BUT_WORDS)
        if self._prefix_space not in always and text[0] in (" ", SPACE_MARK):
            return text
        return SPACE_MARK + text

    def _least_tokens(self, text: str, enough: int) -> int:
        """Return a lower bound on the number of tokens of ``text``; 0 if none is known."""
        missing = frozenset(
            byte
            for byte in range(256)
            if self._model.token_to_id(byte_piece(byte, self._notation)) is None
        )
        # SentencePiece replaces many characters with one unknown token if some of their bytes are
        # missing.
        is_unsure = bool(missing) and self._notation is Notation.SENTENCE_PIECE
        takes_spaces = any(token.lstrip or token.rstrip for token in self._added.by_id.values())
        changes = [s["type"] for s in normalizer_steps(self._model) if not marks_spaces(s)]
        if self._normalize or is_unsure or takes_spaces or changes not in ([], ["NFC"]):
            return 0
        if self._min_tokens is None:
            pieces = map(self._extent, range(self.vocab_size))
            self._min_tokens = _MinTokens(pieces, composes=bool(changes), left_out=missing)
        return self._min_tokens.least_tokens(text, enough)

    def _extent(self, token: int) -> tuple[bytes, int]:
        """Return the bytes in a token's text, and the most bytes of text that it covers.

        If a mark represents a space, the text may contain either.
        """
        if added := self._added.by_id.get(token):
            written = added.text.encode("utf-8")
            return written, len(written)
        covered = self.token_bytes(token)
        if self._notation is Notation.SENTENCE_PIECE and b" " in covered:
            marked = (self._model.id_to_token(token) or "").encode("utf-8")
            return covered + marked, len(marked)
        return covered, len(covered)

    def _without_control(self, ids: list[int]) -> list[int]:
        if self._never_from_text.isdisjoint(ids):
            return ids
        # Some vocabularies list control tokens among the pieces that merges can reach.
        spelled: list[int] = []
        for token in ids:
            if token in self._never_from_text:
                spelled += self._spell(self._added.by_id[token].text)
            else:
                spelled.append(token)
        return spelled

    def _spell(self, text: str) -> list[int]:
        """Return ``text`` as tokens of one character or byte each, without unknown characters."""
        tokens: list[int] = []
        for character in text:
            whole = (
                []
                if self._notation is Notation.BYTE_LEVEL
                else [character.replace(" ", SPACE_MARK)]
            )
            single_bytes = [byte_piece(b, self._notation) for b in character.encode("utf-8")]
            for pieces in (whole, single_bytes):
                ids = [self._model.token_to_id(piece) for piece in pieces]
                found = [i for i in ids if i is not None and i not in self._never_from_text]
                if found and len(found) == len(ids):
                    tokens += found
                    break
        return tokens


def _require_room(num_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and num_tokens > max_tokens:
        raise PromptTooLongError(num_tokens, max_tokens + 1, is_least=True)
