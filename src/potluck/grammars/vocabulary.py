"""The tokens of a model, as bytes, for llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.errors import ParameterError
from potluck.grammars.build import CONTROL, END, LibraryTokens, control_token
from potluck.host.allocator import return_free_memory

if TYPE_CHECKING:
    import llguidance
    from numpy.typing import NDArray

    from potluck.types.text import TokenList

_MAX_TOKEN_BYTES = 1000
"""llguidance's trie has room for paths of 1,024 bytes. Longer tokens are never allowed."""


class Vocabulary:
    """A model's vocabulary, prepared for grammars. Immutable and thread-safe.

    ``vocab_size`` is the number of the model's logits. Raise ``ParameterError`` if no token ends a
    text, since a text that matches a grammar could not end.
    """

    def __init__(self, tokens: TokenList, vocab_size: int) -> None:
        import llguidance

        ends = [token for token in tokens.end_tokens if 0 <= token < vocab_size]
        if not ends:
            raise ParameterError(
                "grammar",
                "the model's tokenizer has no end-of-text token, which grammars require",
            )
        self.vocab_size = vocab_size
        self.end_tokens = frozenset(ends)
        # An additional token ends a text for the matcher, because grammars may name the model's.
        self.end = vocab_size
        wrapper = LibraryTokens([*_library_tokens(tokens, vocab_size), END])
        self.library: llguidance.LLTokenizer = llguidance.LLTokenizer(wrapper)  # type: ignore[arg-type]
        wrapper.tokens = []  # the library has its own copy
        return_free_memory()  # preparing it takes several times the memory that it keeps
        self._end_words = np.zeros(num_words(vocab_size), dtype=np.uint32)
        for token in ends:
            self._end_words[token // 32] |= np.uint32(1 << token % 32)
        self._num_raw_words = num_words(vocab_size + 1)

    @property
    def end_mask(self) -> NDArray[np.uint32]:
        """Return a new mask that allows the tokens that end a text, and nothing else."""
        return self._end_words.copy()

    def allows(self, mask: NDArray[np.uint32], token: int) -> bool:
        """Return whether ``mask`` allows ``token``, which may be any number."""
        if not 0 <= token < self.vocab_size:
            return False
        return bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))

    def mask_of(self, matcher: llguidance.LLMatcher) -> NDArray[np.uint32]:
        """Return the mask of tokens that ``matcher`` allows next; only the end after an error."""
        raw = np.empty(self._num_raw_words, dtype=np.uint32)
        matcher.unsafe_compute_mask_ptr(raw.ctypes.data, raw.nbytes)
        mask = raw[: len(self._end_words)]
        if raw[self.end // 32] >> np.uint32(self.end % 32) & np.uint32(1):
            raw[self.end // 32] &= ~np.uint32(1 << self.end % 32)
            mask |= self._end_words
        return mask


def _library_tokens(tokens: TokenList, vocab_size: int) -> list[bytes]:
    """Return the bytes of each token below ``vocab_size`` in the library's form."""
    data = [each if len(each) <= _MAX_TOKEN_BYTES else b"" for each in tokens.data[:vocab_size]]
    data += [b""] * (vocab_size - len(data))
    for token, text in tokens.control.items():
        name = control_token(text).encode("utf-8", "replace")
        if token < vocab_size and len(name) <= _MAX_TOKEN_BYTES:
            data[token] = CONTROL + name
    return data


def num_words(vocab_size: int) -> int:
    """Return the number of 32-bit words of a mask."""
    return -(-vocab_size // 32)
