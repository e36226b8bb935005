"""State slots and the checkpoints in them."""

from __future__ import annotations

import pytest

from potluck.scheduling.checkpoints import (
    Checkpoint,
    CheckpointIndex,
    CheckpointKind,
    StatePool,
    TokenPrefix,
)
from potluck.scheduling.prefix_index import HashChain, root_hash
from potluck.types.states import StateSlots

TEXT, OTHER = list(range(4000)), list(range(5000, 9000))
WAY, PLACE, END = CheckpointKind.ON_THE_WAY, CheckpointKind.PLACE, CheckpointKind.TURN_END


def chain_of(tokens: list[int]) -> HashChain:
    return HashChain(root_hash(), tokens)


def prefix(num_tokens: int, tokens: list[int] = TEXT) -> TokenPrefix:
    return TokenPrefix.of(chain_of(tokens), tokens, num_tokens)


def made(pool: StatePool, num_tokens: int, kind: CheckpointKind = WAY) -> Checkpoint:
    checkpoint = pool.make(prefix(num_tokens), kind)
    assert checkpoint is not None
    assert pool.publish(checkpoint)
    return checkpoint


def test_the_longest_known_checkpoint_within_what_is_cached() -> None:
    index = CheckpointIndex()
    for slot, length in enumerate((16, 40, 41, 64)):
        index.insert(slot, prefix(length), WAY, is_known=length != 41)
    assert len(index) == 4

    def longest(tokens: list[int], most: int) -> int | None:
        found = index.longest(chain_of(tokens), tokens, most=most)
        return None if found is None else found.prefix.num_tokens

    assert longest(TEXT, 100) == 64
    assert longest(TEXT, 63) == 40, "that after 41 is not written yet"
    assert longest(TEXT, 39) == 16
    assert longest(TEXT, 15) is None
    assert longest([*TEXT[:39], 7, 7], 41) == 16, "the rest of a block counts"
    assert longest(OTHER, 100) is None


def test_what_would_be_computed_again_counts_from_the_checkpoint_before() -> None:
    index = CheckpointIndex()
    of = {
        length: index.insert(slot, prefix(length), WAY, is_known=True)
        for slot, length in enumerate((1024, 3072, 2048))
    }
    apart = index.insert(9, prefix(500, OTHER), WAY, is_known=True)
    assert {length: each.num_saved_tokens for length, each in of.items()} == dict.fromkeys(of, 1024)
    assert apart.num_saved_tokens == 500
    index.remove(of[2048])
    assert of[3072].num_saved_tokens == 2048
    assert index.at(prefix(2048)) is None


def test_what_saves_least_for_its_age_is_given_up_first() -> None:
    index = CheckpointIndex()
    for slot, (length, kind) in enumerate(
        ((1024, WAY), (2048, WAY), (2100, WAY), (2200, PLACE), (2264, END))
    ):
        index.insert(slot, prefix(length), kind, is_known=True)
    order = []
    while (victim := index.least_useful()) is not None:
        order.append(victim.prefix.num_tokens)
        index.remove(victim)
    assert order == [2100, 1024, 2048, 2264, 2200]


def test_a_ladder_is_left_of_a_long_prompt() -> None:
    pool = StatePool(8)
    pool.take(None)
    tokens = list(range(64 * 1024))
    for rung in range(1, 64):
        checkpoint = pool.make(prefix(rung * 1024, tokens), WAY)
        assert checkpoint is not None
        pool.publish(checkpoint)
    rungs = sorted(each.prefix.num_tokens // 1024 for each in pool.checkpoints)
    gaps = [after - before for before, after in zip([0, *rungs], rungs, strict=False)]
    assert len(rungs) == 7
    assert rungs[-1] == 63
    assert gaps == sorted(gaps, reverse=True), "denser towards the end"
    assert gaps[-1] == 1
    assert max(gaps) <= 32


def test_three_quarters_of_the_slots_are_live_at_most() -> None:
    for num_states, num_live in ((1, 1), (2, 1), (4, 3), (8, 6), (64, 48)):
        pool = StatePool(num_states)
        slots = [pool.take(None) for _ in range(num_live)]
        assert slots == list(range(num_live))
        assert not pool.has_room
        with pytest.raises(ValueError, match="no slot"):
            pool.take(None)
        pool.give_back(slots[0])
        assert pool.take(None) == slots[0]
        assert pool.slots == StateSlots(num_live=num_live, num_free=num_states - num_live)


def test_the_only_slot_goes_on_from_the_checkpoint_in_it() -> None:
    pool = StatePool(1)
    slot = pool.take(None)
    assert pool.keep(slot, prefix(100))
    (checkpoint,) = pool.checkpoints
    assert pool.slots == StateSlots(num_checkpoints=1)
    assert pool.take(checkpoint) == slot
    assert pool.slots == StateSlots(num_live=1)


def test_the_slot_of_the_source_is_taken_last() -> None:
    pool = StatePool(4)
    source = made(pool, 100)
    for _ in range(2):
        made(pool, 1000 + pool.slots.num_checkpoints)
    taken = [pool.take(source) for _ in range(3)]
    assert source.slot not in taken
    assert source in pool.checkpoints
    assert pool.slots == StateSlots(num_live=3, num_checkpoints=1)


def test_an_end_of_a_turn_that_is_there_already_frees_its_slot() -> None:
    pool = StatePool(4)
    for is_new in (True, False):
        assert pool.keep(pool.take(None), prefix(70)) is is_new
    assert pool.slots == StateSlots(num_checkpoints=1, num_free=3)


def test_a_checkpoint_that_is_being_written_is_not_given_up() -> None:
    evicted: list[None] = []
    pool = StatePool(2, lambda: evicted.append(None))
    live = pool.take(None)
    pending = pool.make(prefix(16), WAY)
    assert pending is not None
    assert pool.make(prefix(2000), PLACE) is None, "there is no other"
    pool.give_back(live)
    assert pool.take(None) == live
    pool.publish(pending)
    assert pool.make(prefix(2000), PLACE) is not None
    assert len(evicted) == 1
    assert not pool.publish(pending)
    pool.drop(pending)  # it is gone: its slot is another's
    assert pool.slots == StateSlots(num_live=1, num_checkpoints=1)


def test_no_checkpoint_is_given_up_for_one_that_is_worth_less() -> None:
    pool = StatePool(3)
    pool.take(None)
    for length in (1000, 2000):
        made(pool, length, PLACE)
    assert pool.make(prefix(2064), WAY) is None
    assert pool.make(prefix(3000), PLACE) is not None
