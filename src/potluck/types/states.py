"""The number of state slots of a model, and how many of them live sequences may use.

A state slot holds the state that a sequence has in addition to keys and values, for all layers
(see ``potluck.types.program.StateSpec``).
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_STATE_BYTES = 512 * 2**20
"""The total size of a model's slots if the user does not specify their number."""

LEAST_DEFAULT_STATES = 8
"""Six live sequences and two checkpoints, however large a slot is."""

MOST_DEFAULT_STATES = 64
"""The maximum number of sequences in a step, for small slots."""

MAX_STATES = 1024
"""More than a plan for ``potluck.types.ranges.MAX_STREAMS`` streams requires."""

_LIVE_PARTS, _PARTS = 3, 4
"""The fraction of slots that live sequences may use; the others are for checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlots:
    """The number of slots used by live sequences, used by checkpoints, and free.

    A slot takes ``slot_bytes`` on all stages together, if known.
    """

    num_live: int = 0
    num_checkpoints: int = 0
    num_free: int = 0
    slot_bytes: int = 0


def num_live_states(num_states: int) -> int:
    """Return how many of ``num_states`` slots live sequences may use: three quarters, at least 1.

    The result is 0 for a model without state.
    """
    return max(1, num_states * _LIVE_PARTS // _PARTS) if num_states else 0


def states_for(num_sequences: int) -> int:
    """Return the smallest number of slots with which ``num_sequences`` may be live at once."""
    return 1 if num_sequences <= 1 else -(-num_sequences * _PARTS // _LIVE_PARTS)


def default_num_states(slot_bytes: int) -> int:
    """Return the default number of slots of a model; 0 if it has no state.

    ``slot_bytes`` is the size of one slot on all stages together. The default is as many slots as
    fit into 512 MiB, at least 8 and at most 64.
    """
    if slot_bytes == 0:
        return 0
    held = DEFAULT_STATE_BYTES // slot_bytes
    return min(max(held, LEAST_DEFAULT_STATES), MOST_DEFAULT_STATES)
