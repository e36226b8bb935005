"""The tokens of a model as llguidance sees them: the bytes that each stands for.

``TokenTable`` is what must be known of a tokenizer for that, in one block of bytes: the last stage
needs it and not the tokenizer, which takes up to hundreds of megabytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from potluck.errors import ParameterError
from potluck.grammars.build import control_token
from potluck.types.text import Tokenizer

if TYPE_CHECKING:
    import llguidance
    from numpy.typing import NDArray

_CONTROL = b"\xff"
"""Before the name of a control token: no text has this byte, so no text matches one
(llguidance's ``TokTrie::SPECIAL_TOKEN_MARKER``)."""

_MAX_TOKEN_BYTES = 1000
"""llguidance's trie has room for paths of 1,024 bytes. Longer tokens are never allowed."""


class TokenTable(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of every token of a tokenizer, one after another in ``data``.

    ``lengths`` are 16-bit numbers (little-endian). Control tokens have their names in ``control``
    and no bytes in ``data``. ``end_tokens`` end a text.
    """

    lengths: bytes
    data: bytes
    control: dict[int, str]
    end_tokens: tuple[int, ...]

    def encode(self) -> bytes:
        """Return it as bytes, for ``decode``."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> TokenTable:
        """Raise ``msgspec.DecodeError`` for what ``encode`` has not returned."""
        return msgspec.msgpack.decode(data, type=TokenTable)

    def tokens(self, vocab_size: int) -> list[bytes]:
        """Return the bytes of each token below ``vocab_size``, as llguidance takes them."""
        lengths = np.frombuffer(self.lengths, dtype="<u2").tolist()
        tokens, start = [], 0
        for token, length in enumerate(lengths[:vocab_size]):
            name = self.control.get(token)
            data = self.data[start : start + length]
            tokens.append(data if name is None else _CONTROL + control_token(name).encode())
            start += length
        tokens += [b""] * (vocab_size - len(tokens))
        return [token if len(token) <= _MAX_TOKEN_BYTES else b"" for token in tokens]


def token_table(tokenizer: Tokenizer) -> TokenTable:
    """Return the table of ``tokenizer``."""
    control = {}
    for text in tokenizer.special_tokens:
        tokens = tokenizer.encode(text, add_bos=False, parse_special=True)
        if len(tokens) == 1:
            control[tokens[0]] = text
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    pieces = [piece if len(piece) <= _MAX_TOKEN_BYTES else b"" for piece in pieces]
    return TokenTable(
        lengths=np.array([len(piece) for piece in pieces], dtype="<u2").tobytes(),
        data=b"".join(pieces),
        control=control,
        end_tokens=tokenizer.eos_token_ids,
    )


class Vocabulary:
    """A model's vocabulary, prepared for grammars. Immutable; safe for use by several threads.

    ``vocab_size`` is that of the model's logits. Raise ``ParameterError`` if no token ends a text:
    a text that matches a grammar could not end.
    """

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        import llguidance

        ends = [token for token in table.end_tokens if token < vocab_size]
        if not ends:
            raise ParameterError(
                "grammar",
                "the model's tokenizer has no token that ends a text, which grammars need",
            )
        self.vocab_size = vocab_size
        self.end_tokens = frozenset(ends)
        # One more token, which ends a text for the matcher: a grammar may name the model's own.
        self.end = vocab_size
        wrapper = _Wrapper([*table.tokens(vocab_size), b""], self.end)
        self.library: llguidance.LLTokenizer = llguidance.LLTokenizer(wrapper)  # type: ignore[arg-type]
        wrapper.tokens = []  # the library has its own copy
        self._end_words = np.zeros(num_words(vocab_size), dtype=np.uint32)
        for token in ends:
            self._end_words[token // 32] |= np.uint32(1 << token % 32)
        self._num_raw_words = num_words(vocab_size + 1)

    @property
    def end_mask(self) -> NDArray[np.uint32]:
        """Return a new mask that allows the tokens that end a text, and nothing else."""
        return self._end_words.copy()

    def mask_of(self, matcher: llguidance.LLMatcher) -> NDArray[np.uint32]:
        """Return the mask of what ``matcher`` allows next; after an error that is the end."""
        raw = np.empty(self._num_raw_words, dtype=np.uint32)
        matcher.unsafe_compute_mask_ptr(raw.ctypes.data, raw.nbytes)
        mask = raw[: len(self._end_words)]
        if raw[self.end // 32] >> np.uint32(self.end % 32) & np.uint32(1):
            raw[self.end // 32] &= ~np.uint32(1 << self.end % 32)
            mask |= self._end_words
        return mask


def num_words(vocab_size: int) -> int:
    """Return how many 32-bit words a mask has."""
    return -(-vocab_size // 32)


class _Wrapper:
    """What ``LLTokenizer`` asks of a tokenizer (``llguidance.TokenizerWrapper``)."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end

    def __call__(self, text: str) -> list[int]:
        """Never needed: grammars that force no tokens are tokenized by the model."""
        raise NotImplementedError(f"grammars force no tokens, and {text!r} was to be tokenized")
