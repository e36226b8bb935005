"""Which cache block holds which tokens, so that equal prefixes are computed once.

A block's content follows from all tokens up to its end, because a token's logits and cache rows
depend on its own sequence alone. A full block is named by a hash chained from the first token, as
in vLLM; the blocks that continue a chain, full or not, are found by the hash of what comes before
them. Holders and eviction are handled by ``block_cache``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from potluck.types.step import KV_BLOCK_TOKENS, num_common

_DIGEST_BYTES = 32
"""Long enough that two prompts with the same hash cannot be constructed, so no client can get the
cache content of another client's prompt."""

_MAX_SIBLINGS = 64
"""How many blocks are searched for a common prefix, latest first. At most 15 cached tokens are
missed because of this limit."""

_pack_tokens = struct.Struct(f"<{KV_BLOCK_TOKENS}I").pack


def root_hash(salt: bytes = b"") -> bytes:
    """Return the hash of the empty prefix. Chains with different salts share nothing."""
    return hashlib.blake2b(salt, digest_size=_DIGEST_BYTES, person=b"potluck-prefix").digest()


def next_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of the prefix that ends with ``tokens``, after that with hash ``parent``."""
    return hashlib.blake2b(parent + _pack_tokens(*tokens), digest_size=_DIGEST_BYTES).digest()


class HashChain:
    """The hashes of a sequence's full blocks, computed on demand.

    ``tokens`` may only be appended to.
    """

    def __init__(self, root: bytes, tokens: Sequence[int]) -> None:
        self._hashes = [root]
        self._tokens = tokens

    def after(self, num_blocks: int) -> bytes:
        """Return the hash of the first ``num_blocks`` blocks, which must be full."""
        hashes = self._hashes
        for index in range(len(hashes) - 1, num_blocks):
            start = index * KV_BLOCK_TOKENS
            hashes.append(next_hash(hashes[-1], self._tokens[start : start + KV_BLOCK_TOKENS]))
        return hashes[num_blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """The longest prefix of a sequence that is in the cache.

    ``blocks`` are full and can be shared. The block ``partial`` holds the ``num_partial_tokens``
    that follow them. It must be copied before use, because the sequence writes to the rest of it.
    If the model has a state, ``checkpoint`` is the slot that holds it after these tokens; None if
    there are none. Keys and values of ``num_uncovered_tokens`` more are cached, but no state.
    """

    blocks: tuple[int, ...] = ()
    partial: int | None = None
    num_partial_tokens: int = 0
    checkpoint: int | None = None
    num_uncovered_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that need not be computed."""
        return len(self.blocks) * KV_BLOCK_TOKENS + self.num_partial_tokens

    @property
    def num_known_tokens(self) -> int:
        """Return the number of tokens whose keys and values are cached."""
        return self.num_tokens + self.num_uncovered_tokens

    def resumed_at(self, num_tokens: int, checkpoint: int | None) -> PrefixMatch:
        """Return the match of the first ``num_tokens`` of these, whose state is in
        ``checkpoint``.
        """
        num_blocks, num_rest = divmod(num_tokens, KV_BLOCK_TOKENS)
        partial = None
        if num_rest:
            is_full = num_blocks < len(self.blocks)
            partial = self.blocks[num_blocks] if is_full else self.partial
        return PrefixMatch(
            blocks=self.blocks[:num_blocks],
            partial=partial,
            num_partial_tokens=num_rest,
            checkpoint=checkpoint,
            num_uncovered_tokens=self.num_tokens - num_tokens,
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    parent: bytes
    tokens: tuple[int, ...]
    full_hash: bytes | None


class PrefixIndex:
    """Finds blocks by their content. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._full: dict[bytes, int] = {}
        self._children: dict[bytes, dict[int, None]] = {}  # by the hash before them, oldest first

    def block_of(self, full_hash: bytes) -> int | None:
        """Return the full block with that hash, or None if there is none."""
        return self._full.get(full_hash)

    def holds(self, parent: bytes, rest: tuple[int, ...]) -> bool:
        """Return whether a block holds ``rest`` after ``parent``, among those searched."""
        return any(
            self._entries[each].tokens[: len(rest)] == rest for each in self._siblings(parent)
        )

    def match(self, chain: HashChain, tokens: Sequence[int], *, most: int) -> PrefixMatch:
        """Return the longest cached prefix of ``tokens``, of at most ``most`` tokens."""
        blocks: list[int] = []
        while (len(blocks) + 1) * KV_BLOCK_TOKENS <= most:
            block = self._full.get(chain.after(len(blocks) + 1))
            if block is None:
                break
            blocks.append(block)
        start = len(blocks) * KV_BLOCK_TOKENS
        wanted = tuple(tokens[start : min(most, start + KV_BLOCK_TOKENS)])
        partial, num_partial = None, 0
        if wanted:
            for block in self._siblings(chain.after(len(blocks))):
                count = num_common(self._entries[block].tokens, wanted)
                if count > num_partial:
                    partial, num_partial = block, count
        return PrefixMatch(blocks=tuple(blocks), partial=partial, num_partial_tokens=num_partial)

    def publish(
        self, block: int, parent: bytes, tokens: Sequence[int], full_hash: bytes | None
    ) -> bool:
        """Record that ``block`` holds ``tokens`` after ``parent``; return False if another one
        does.

        ``full_hash`` is the hash of a full block, and None for a partial one. An earlier record of
        ``block`` is replaced.
        """
        self.forget(block)
        held = tuple(tokens)
        if full_hash is not None:
            if full_hash in self._full:
                return False
            self._full[full_hash] = block
        elif self.holds(parent, held):
            return False
        self._entries[block] = _Entry(parent, held, full_hash)
        self._children.setdefault(parent, {})[block] = None
        return True

    def forget(self, block: int) -> tuple[bytes, ...]:
        """Forget the content of ``block``, if it is known.

        Return the hash of what comes before it and, if it is full, that of its end.
        """
        entry = self._entries.pop(block, None)
        if entry is None:
            return ()
        siblings = self._children[entry.parent]
        del siblings[block]
        if not siblings:
            del self._children[entry.parent]
        if entry.full_hash is None:
            return (entry.parent,)
        del self._full[entry.full_hash]
        return entry.parent, entry.full_hash

    def superseded(self, block: int) -> list[int]:
        """Return the blocks whose tokens are a prefix of those in ``block``."""
        entry = self._entries[block]
        found = []
        for other in self._siblings(entry.parent):
            tokens = self._entries[other].tokens
            if other != block and entry.tokens[: len(tokens)] == tokens:
                found.append(other)
        return found

    def _siblings(self, parent: bytes) -> Iterator[int]:
        return islice(reversed(self._children.get(parent, {})), _MAX_SIBLINGS)
