"""How many state slots a model has, and how many of them live sequences may take.

A state slot holds what a sequence keeps besides keys and values, of all layers together (see
``potluck.types.program.StateSpec``).
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_STATE_BYTES = 512 * 2**20
"""Of all slots of a model together, where nobody asks for a number of them."""

LEAST_DEFAULT_STATES = 8
"""Six live sequences and two checkpoints, however large a slot is."""

MOST_DEFAULT_STATES = 64
"""As many as a step has sequences, where slots are small."""

MAX_STATES = 1024
"""More than a plan for ``potluck.types.ranges.MAX_STREAMS`` streams has."""

_LIVE_PARTS, _PARTS = 3, 4
"""Of so many slots live sequences take at most so many; the others are for checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlots:
    """How many slots live sequences have, how many hold checkpoints, and how many are free.

    One takes ``slot_bytes`` on all stages together, if that is known.
    """

    num_live: int = 0
    num_checkpoints: int = 0
    num_free: int = 0
    slot_bytes: int = 0


def num_live_states(num_states: int) -> int:
    """Return how many of ``num_states`` slots live sequences may take: three quarters, at least 1.

    0 for a model without state, whose sequences need none.
    """
    return max(1, num_states * _LIVE_PARTS // _PARTS) if num_states else 0


def states_for(num_sequences: int) -> int:
    """Return the fewest slots of which ``num_sequences`` may be live at the same time."""
    return 1 if num_sequences <= 1 else -(-num_sequences * _PARTS // _LIVE_PARTS)


def default_num_states(slot_bytes: int) -> int:
    """Return how many slots a model has for which nobody asks for a number; 0 if it has no state.

    ``slot_bytes`` is what one slot takes on all stages together. They are as many as 512 MiB hold,
    at least 8 and at most 64.
    """
    if slot_bytes == 0:
        return 0
    held = DEFAULT_STATE_BYTES // slot_bytes
    return min(max(held, LEAST_DEFAULT_STATES), MOST_DEFAULT_STATES)
