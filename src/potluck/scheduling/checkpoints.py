"""Which state slot holds the state after which tokens, and which of them is given up first.

A *checkpoint* is the state of a sequence after exactly so many tokens, kept for later sequences
that begin alike. Unlike keys and values it cannot be cut: a sequence resumes at a checkpoint or not
at all. It is named by the hash of the full blocks of its tokens and by the tokens that follow them.

What a checkpoint is worth is what would be computed again without it: the tokens from the longest
checkpoint before it on the same chain, its *base*. The longer it has not been used, the less likely
that is; and it is more likely for some kinds than for others (``CheckpointKind``). So the one with
the fewest such tokens for each tick of a clock that counts uses is given up first. On one chain
this leaves a ladder, whose steps grow with age: dense where a conversation is now, sparse where it
was. A long prompt of another conversation outlives many short steps of this one, but not forever.
Keeping only the latest would be worse: an agent that drops its thoughts from the history goes back
by thousands of tokens, and finds nothing there (llama.cpp#23013).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potluck.scheduling.prefix_index import HashChain
from potluck.types.step import KV_BLOCK_TOKENS

_PATH_BYTES = 8
"""Of each hash, to tell which checkpoint precedes which. A mistake would cost no more than the
wrong choice of what to give up."""


_LIKELY = 16
"""How many times as likely a place for a later request to begin at is, as one on the way. Of 4 and
16 the latter let agents whose thoughts are dropped after 10 to 30 calls of tools compute less again
(8 to 16 slots, one to three conversations)."""


class CheckpointKind(enum.Enum):
    """Why a checkpoint was made.

    ``PLACE`` is where a later request is likely to begin: near the end of a prompt, or where
    prompts were seen to part. ``TURN_END`` is where a sequence ended, as likely until another has
    gone on from there. ``ON_THE_WAY`` are the others.
    """

    PLACE = "place"
    TURN_END = "turn end"
    ON_THE_WAY = "on the way"


class PlannedCheckpoint(NamedTuple):
    """A checkpoint that is to be made after so many tokens of a sequence."""

    position: int
    kind: CheckpointKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrefix:
    """The first ``num_tokens`` of a sequence: full blocks with the hash ``parent``, and the rest.

    ``path`` is the beginning of the hash of each full block.
    """

    num_tokens: int
    parent: bytes
    rest: tuple[int, ...]
    path: bytes

    @classmethod
    def of(cls, chain: HashChain, tokens: Sequence[int], num_tokens: int) -> TokenPrefix:
        """Return the first ``num_tokens`` of ``tokens``, whose hashes ``chain`` has."""
        num_blocks = num_tokens // KV_BLOCK_TOKENS
        return cls(
            num_tokens=num_tokens,
            parent=chain.after(num_blocks),
            rest=tuple(tokens[num_blocks * KV_BLOCK_TOKENS : num_tokens]),
            path=b"".join(chain.after(each + 1)[:_PATH_BYTES] for each in range(num_blocks)),
        )

    def precedes(self, other: TokenPrefix) -> bool:
        """Whether ``other`` begins with the full blocks of this one, and is longer."""
        return self.num_tokens < other.num_tokens and other.path.startswith(self.path)


@dataclass(slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The state after ``prefix``, in ``slot``, used last at ``used``.

    ``is_known``: the step that writes it has completed. ``base`` is the longest checkpoint before
    it on the same chain.
    """

    slot: int
    prefix: TokenPrefix
    kind: CheckpointKind
    is_known: bool
    used: int = 0
    base: Checkpoint | None = None

    @property
    def num_saved_tokens(self) -> int:
        """Tokens that would be computed again without it."""
        before = 0 if self.base is None else self.base.prefix.num_tokens
        return self.prefix.num_tokens - before


class CheckpointIndex:
    """Checkpoints by their tokens. Not thread-safe."""

    def __init__(self) -> None:
        self._checkpoints: dict[tuple[bytes, tuple[int, ...]], Checkpoint] = {}
        self._clock = 0

    def __len__(self) -> int:
        """Return the number of checkpoints, of which some may not be known yet."""
        return len(self._checkpoints)

    def __iter__(self) -> Iterator[Checkpoint]:
        """Iterate over all, in no particular order. They may be removed meanwhile."""
        return iter(tuple(self._checkpoints.values()))

    def __contains__(self, checkpoint: Checkpoint) -> bool:
        """Whether this very checkpoint has not been removed."""
        return self.at(checkpoint.prefix) is checkpoint

    def at(self, prefix: TokenPrefix) -> Checkpoint | None:
        """Return the checkpoint after exactly those tokens."""
        return self._checkpoints.get((prefix.parent, prefix.rest))

    def in_slot(self, slot: int) -> Checkpoint | None:
        """Return the checkpoint that is in ``slot``."""
        return next((each for each in self._checkpoints.values() if each.slot == slot), None)

    def longest(self, chain: HashChain, tokens: Sequence[int], *, most: int) -> Checkpoint | None:
        """Return the longest known checkpoint of ``tokens``, of at most ``most`` tokens."""
        longest, found = 0, None
        for each in self._checkpoints.values():
            prefix = each.prefix
            count = prefix.num_tokens
            if not each.is_known or not longest < count <= most:
                continue
            num_blocks = count // KV_BLOCK_TOKENS
            if chain.after(num_blocks) != prefix.parent:
                continue
            if tuple(tokens[num_blocks * KV_BLOCK_TOKENS : count]) == prefix.rest:
                longest, found = count, each
        return found

    def insert(
        self, slot: int, prefix: TokenPrefix, kind: CheckpointKind, *, is_known: bool
    ) -> Checkpoint:
        """Record that ``slot`` holds the state after ``prefix``, of which there is no other."""
        base = self._base_of(prefix)
        new = Checkpoint(slot=slot, prefix=prefix, kind=kind, is_known=is_known, base=base)
        for each in self._checkpoints.values():
            if each.base is new.base and prefix.precedes(each.prefix):
                each.base = new
        self._checkpoints[prefix.parent, prefix.rest] = new
        self.use(new)
        return new

    def use(self, checkpoint: Checkpoint) -> None:
        """Note that it is of use now."""
        self._clock += 1
        checkpoint.used = self._clock

    def remove(self, checkpoint: Checkpoint) -> None:
        """Forget it, whose slot is another's now."""
        del self._checkpoints[checkpoint.prefix.parent, checkpoint.prefix.rest]
        for each in self._checkpoints.values():
            if each.base is checkpoint:
                each.base = checkpoint.base

    def least_useful(self, besides: Checkpoint | None = None) -> Checkpoint | None:
        """Return the known one that is given up first, which is not ``besides``."""
        others = (
            each for each in self._checkpoints.values() if each.is_known and each is not besides
        )
        return min(others, key=self.worth, default=None)

    def worth(self, checkpoint: Checkpoint) -> float:
        """Return the tokens that it saves for each tick since it was used."""
        age = self._clock + 1 - checkpoint.used
        return checkpoint.num_saved_tokens * _weight(checkpoint.kind) / age

    def worth_of_new(self, prefix: TokenPrefix, kind: CheckpointKind) -> float:
        """Return what a checkpoint after ``prefix`` would be worth."""
        base = self._base_of(prefix)
        num_saved = prefix.num_tokens - (0 if base is None else base.prefix.num_tokens)
        return num_saved * _weight(kind)

    def _base_of(self, prefix: TokenPrefix) -> Checkpoint | None:
        shorter = (each for each in self._checkpoints.values() if each.prefix.precedes(prefix))
        return max(shorter, key=lambda each: each.prefix.num_tokens, default=None)


def _weight(kind: CheckpointKind) -> int:
    return 1 if kind is CheckpointKind.ON_THE_WAY else _LIKELY
