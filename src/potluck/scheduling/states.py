"""State slots: of live sequences, and of checkpoints.

A model with recurrent layers or short convolutions keeps a state of fixed size for each sequence,
in addition to keys and values (``StateSpec``). A slot has room for one, on every stage. A live
sequence has one slot. The other slots hold checkpoints (``checkpoints``).
"""

from __future__ import annotations

from collections.abc import Callable

from potluck.scheduling.checkpoints import (
    Checkpoint,
    CheckpointIndex,
    CheckpointKind,
    TokenPrefix,
)
from potluck.types.states import StateSlots, num_live_states

_CHECKPOINT_PARTS = 4
"""One slot in this many remains for checkpoints: without any, the next turn of a chat would be
computed from its beginning."""


class StatePool:
    """Slots ``[0, num_states)``, all free at first. Not thread-safe.

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
        if not self._free:
            if len(self.checkpoints) <= self.num_states // _CHECKPOINT_PARTS:
                return None
            victim = self.checkpoints.least_useful()
            if victim is None:
                return None
            self.evict(victim)
        self._num_snapshots += 1
        return self._free.pop()

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
