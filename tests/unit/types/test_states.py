"""How many state slots there are, and how many of them live sequences may take."""

from __future__ import annotations

import pytest

from potluck.types.ranges import MAX_STREAMS
from potluck.types.states import MAX_STATES, default_num_states, num_live_states, states_for

MIB = 2**20


@pytest.mark.parametrize(
    ("slot_bytes", "num_states"),
    [
        (0, 0),
        (1, 64),
        (8 * MIB, 64),
        (8 * MIB + 1, 63),
        (50 * MIB, 10),
        (64 * MIB, 8),
        (75 * MIB, 8),
        (1024 * MIB, 8),
    ],
)
def test_as_many_as_half_a_gibibyte_holds(slot_bytes: int, num_states: int) -> None:
    assert default_num_states(slot_bytes) == num_states


def test_three_quarters_are_for_live_sequences_and_one_at_least() -> None:
    assert [num_live_states(each) for each in (0, 1, 2, 3, 4, 8, 10, 64)] == [
        0, 1, 1, 2, 3, 6, 7, 48,
    ]  # fmt: skip


def test_as_few_slots_as_hold_so_many_live_sequences() -> None:
    for num_sequences in range(1, MAX_STREAMS + 1):
        enough = states_for(num_sequences)
        assert num_live_states(enough) >= num_sequences
        assert enough == 1 or num_live_states(enough - 1) < num_sequences
        assert enough <= MAX_STATES
