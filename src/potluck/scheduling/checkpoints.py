"""Which state slot holds the state after which tokens, and which of them is evicted first.

A *checkpoint* is the state of a sequence after an exact number of tokens, kept for later sequences
with the same prefix. Unlike keys and values it cannot be truncated: a sequence resumes at a
checkpoint or not at all. It is identified by the hash of the full blocks of its tokens and by the
tokens that follow them.

The value of a checkpoint is what would have to be recomputed without it: the tokens from the
longest checkpoint before it on the same chain, its *base*. The longer it has not been used, the
less likely a use is; some kinds are more likely to be used than others (``CheckpointKind``). So the
checkpoint with the fewest such tokens per tick of a clock that counts uses is evicted first. On one
chain this leaves a ladder whose intervals grow with age: dense where a conversation is now, sparse
in its past. A long prompt of another conversation outlives many short steps of this one, but not
forever. Keeping only the latest would be worse: an agent that drops its reasoning from the history
goes back by thousands of tokens, and would find nothing there (llama.cpp#23013).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potluck.scheduling.prefix_index import HashChain
from potluck.types.states import StateSlots, num_live_states
from potluck.types.step import KV_BLOCK_TOKENS

_PATH_BYTES = 8
"""The prefix of each hash that is compared to decide which checkpoint precedes which. A collision
would only evict the wrong checkpoint."""


_LIKELY = 16
"""How many times as likely a later request is to begin at a place as at a checkpoint on the way. Of
4 and 16, the latter let agents whose reasoning is dropped after 10 to 30 tool calls recompute less
(8 to 16 slots, one to three conversations)."""


_CHECKPOINT_PARTS = 4
"""One slot in this many remains for checkpoints: without any, the next turn of a chat would be
computed from its beginning."""


class CheckpointKind(enum.Enum):
    """Why a checkpoint was made.

    ``PLACE`` is where a later request is likely to begin: near the end of a prompt, or where
    prompts were seen to diverge. ``TURN_END`` is where a sequence ended, which is as likely until
    another has continued from there. ``ON_THE_WAY`` are the others.
    """

    PLACE = "place"
    TURN_END = "turn end"
    ON_THE_WAY = "on the way"


class PlannedCheckpoint(NamedTuple):
    """A checkpoint to be made after a number of tokens of a sequence."""

    position: int
    kind: CheckpointKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrefix:
    """The first ``num_tokens`` of a sequence: full blocks with the hash ``parent``, and the rest.

    ``path`` has the beginning of the hash of each full block.
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
        """Return whether ``other`` begins with the full blocks of this one, and is longer."""
        return self.num_tokens < other.num_tokens and other.path.startswith(self.path)


@dataclass(slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The state after ``prefix``, in ``slot``, last used at ``used``.

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
        """Return the number of tokens that would be recomputed without it."""
        before = 0 if self.base is None else self.base.prefix.num_tokens
        return self.prefix.num_tokens - before


class CheckpointIndex:
    """Checkpoints by their tokens. Not thread-safe."""

    def __init__(self) -> None:
        self._checkpoints: dict[tuple[bytes, tuple[int, ...]], Checkpoint] = {}
        self._clock = 0

    def __len__(self) -> int:
        """Return the number of checkpoints, including those not known yet."""
        return len(self._checkpoints)

    def __iter__(self) -> Iterator[Checkpoint]:
        """Iterate over all, in no particular order. They may be removed meanwhile."""
        return iter(tuple(self._checkpoints.values()))

    def __contains__(self, checkpoint: Checkpoint) -> bool:
        """Return whether this very checkpoint has not been removed."""
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
        """Record a use."""
        self._clock += 1
        checkpoint.used = self._clock

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint whose slot is reused."""
        del self._checkpoints[checkpoint.prefix.parent, checkpoint.prefix.rest]
        for each in self._checkpoints.values():
            if each.base is checkpoint:
                each.base = checkpoint.base

    def least_useful(self, besides: Checkpoint | None = None) -> Checkpoint | None:
        """Return the known checkpoint, other than ``besides``, that is evicted first."""
        others = (
            each for each in self._checkpoints.values() if each.is_known and each is not besides
        )
        return min(others, key=self.worth, default=None)

    def worth(self, checkpoint: Checkpoint) -> float:
        """Return the tokens that it saves per tick since its last use."""
        age = self._clock + 1 - checkpoint.used
        return checkpoint.num_saved_tokens * _weight(checkpoint.kind) / age

    def worth_of_new(self, prefix: TokenPrefix, kind: CheckpointKind) -> float:
        """Return the value of a new checkpoint after ``prefix``."""
        base = self._base_of(prefix)
        num_saved = prefix.num_tokens - (0 if base is None else base.prefix.num_tokens)
        return num_saved * _weight(kind)

    def _base_of(self, prefix: TokenPrefix) -> Checkpoint | None:
        shorter = (each for each in self._checkpoints.values() if each.prefix.precedes(prefix))
        return max(shorter, key=lambda each: each.prefix.num_tokens, default=None)


def _weight(kind: CheckpointKind) -> int:
    return 1 if kind is CheckpointKind.ON_THE_WAY else _LIKELY


class StatePool:
    """The slots ``[0, num_states)`` of live sequences and checkpoints. Not thread-safe.

    A model with recurrent layers or short convolutions keeps a state of fixed size for each
    sequence, in addition to keys and values (``StateSpec``). A slot has room for one, on every
    stage. A live sequence has one slot; the others hold checkpoints. All are free at first.

    At most ``num_live_states`` are live, so that there is always room for checkpoints. Steps pass
    through the stages in order, so a slot may be reused while a step that reads or writes it is in
    flight: what follows is in a later step, or later among the copies of the same one. But no step
    writes a slot twice: a checkpoint that is not known yet, because its step has not completed or
    is being formed, is not evicted. ``on_evict`` is called for each evicted one.
    """

    def __init__(self, num_states: int, on_evict: Callable[[], None] | None = None) -> None:
        if num_states < 1:
            raise ValueError("a pool needs at least one slot")
        self.num_states = num_states
        self.checkpoints = CheckpointIndex()
        self._on_evict = on_evict
        self._most_live = num_live_states(num_states)
        # Popped from the end: low indices first, so that little memory is touched.
        self._free = list(range(num_states - 1, -1, -1))
        self._num_live = 0
        self._num_snapshots = 0

    @property
    def slots(self) -> StateSlots:
        """Return how many slots are used for what."""
        return StateSlots(
            num_live=self._num_live + self._num_snapshots,
            num_checkpoints=len(self.checkpoints),
            num_free=len(self._free),
        )

    @property
    def has_room(self) -> bool:
        """Return whether one more sequence may be live."""
        if self._num_live >= self._most_live:
            return False
        return bool(self._free) or any(each.is_known for each in self.checkpoints)

    def take(self, source: Checkpoint | None) -> int:
        """Return a slot for a sequence that begins with ``source``, or with zeros.

        If no other slot is left, it is that of ``source``, which is then no longer a checkpoint.
        Raise ``ValueError`` without ``has_room``.
        """
        if not self.has_room:
            raise ValueError("there is no slot for another sequence")
        if not self._free:
            victim = self.checkpoints.least_useful(besides=source) or source
            if victim is not None:
                self.evict(victim)
        # A source that was just evicted may be the last of the free ones.
        is_source = source is not None and self._free[-1] == source.slot
        slot = self._free.pop(0 if is_source else -1)
        self._num_live += 1
        return slot

    def take_snapshot(self) -> int | None:
        """Return a slot for a copy of a live sequence's state; None if none can be spared.

        Checkpoints are evicted for it as long as a quarter of all slots have some, and a slot is
        left for a waiting sequence.
        """
        num_spare = len(self._free) + sum(each.is_known for each in self.checkpoints)
        if self._num_live < self._most_live and num_spare < 2:
            return None
        if not self._free and len(self.checkpoints) <= self.num_states // _CHECKPOINT_PARTS:
            return None
        slot = self.reserve()
        if slot is not None:
            self._num_snapshots += 1
        return slot

    def give_back_snapshot(self, slot: int) -> None:
        """Free the slot of a snapshot."""
        self._num_snapshots -= 1
        self._free.append(slot)

    def keep_snapshot(self, slot: int, snapshot: int, prefix: TokenPrefix) -> bool:
        """Turn a snapshot into a checkpoint after ``prefix``, and free the ``slot`` of its
        sequence.

        Return False if there is one already.
        """
        self._num_snapshots -= 1
        self._free.append(slot)
        return self.keep(snapshot, prefix)

    def give_back(self, slot: int) -> None:
        """Free the slot of a sequence."""
        self._num_live -= 1
        self._free.append(slot)

    def keep(self, slot: int, prefix: TokenPrefix) -> bool:
        """Turn the slot of a sequence, with the state after ``prefix``, into a checkpoint.

        Return False, and free the slot, if there is one already.
        """
        there = self.checkpoints.at(prefix)
        if there is not None:
            self.checkpoints.use(there)
            self.give_back(slot)
            return False
        self._num_live -= 1
        self.checkpoints.insert(slot, prefix, CheckpointKind.TURN_END, is_known=True)
        return True

    def make(self, prefix: TokenPrefix, kind: CheckpointKind) -> Checkpoint | None:
        """Return a checkpoint whose slot is to become a copy of a sequence's.

        Call ``publish`` or ``drop`` next. Return None if there is one already, or only more
        valuable ones.
        """
        checkpoints = self.checkpoints
        there = checkpoints.at(prefix)
        if there is not None:
            checkpoints.use(there)
            return None
        if not self._free:
            victim = checkpoints.least_useful()
            if victim is None or checkpoints.worth(victim) > checkpoints.worth_of_new(prefix, kind):
                return None
            self.evict(victim)
        return checkpoints.insert(self._free.pop(), prefix, kind, is_known=False)

    def publish(self, checkpoint: Checkpoint) -> bool:
        """Let others resume at a checkpoint that is written; return False if it is gone."""
        if checkpoint not in self.checkpoints:
            return False
        checkpoint.is_known = True
        return True

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint, which may already be gone, and free its slot."""
        if checkpoint in self.checkpoints:
            self.checkpoints.remove(checkpoint)
            self._free.append(checkpoint.slot)

    def reserve(self) -> int | None:
        """Return a slot that is to be filled from elsewhere; None if there is no room for it."""
        if not self._free:
            victim = self.checkpoints.least_useful()
            if victim is None:
                return None
            self.evict(victim)
        return self._free.pop()

    def fill(self, slot: int, prefix: TokenPrefix | None) -> None:
        """Turn a reserved slot into a checkpoint; free it if there is one already, or no
        ``prefix``.

        A checkpoint that is being written stays: its sequence depends on it.
        """
        if prefix is None or self.checkpoints.at(prefix) is not None:
            self._free.append(slot)
        else:
            self.checkpoints.insert(slot, prefix, CheckpointKind.PLACE, is_known=True)

    def evict(self, checkpoint: Checkpoint) -> None:
        """Forget a known checkpoint, and free its slot."""
        self.drop(checkpoint)
        if self._on_evict is not None:
            self._on_evict()
