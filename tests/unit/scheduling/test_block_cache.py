"""Blocks that are restored from elsewhere, and those that are told to be stored there."""

from potluck.scheduling.block_cache import BlockCache
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.prefix_index import HashChain, next_hash, root_hash
from potluck.scheduling.sequence import SequenceState
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, SequenceId


def make_cache(num_blocks: int = 8, salt: bytes = b"") -> BlockCache:
    limits = SchedulerLimits(
        num_blocks=num_blocks,
        context_tokens=60,
        max_step_tokens=60,
        max_step_sequences=1,
        max_steps_in_flight=1,
        disk_salt=salt,
    )
    return BlockCache(limits, PrefixTotals())


def make_sequence(number: int, tokens: list[int], root: bytes = root_hash()) -> SequenceState:
    known = list(tokens)
    request = SequenceRequest(
        prompt_tokens=tuple(tokens), sampling=SamplingParams(), max_new_tokens=1
    )
    return SequenceState(
        sequence_id=SequenceId(number),
        request=request,
        max_tokens=len(tokens) + 1,
        tokens=known,
        chain=HashChain(root, known),
    )


PROMPT = list(range(50))


def hashes(count: int) -> list[bytes]:
    found = [root_hash()]
    for index in range(count):
        found.append(next_hash(found[-1], PROMPT[16 * index : 16 * index + 16]))
    return found[1:]


def test_full_blocks_are_told_once_with_their_hashes() -> None:
    cache, sequence = make_cache(), make_sequence(0, PROMPT)
    cache.admit(sequence, cache.find(sequence))
    assert cache.take_filled(99) == ()
    cache.computed(sequence, 40)
    filled = cache.take_filled(99)
    assert [each.hash for each in filled] == hashes(2)
    assert [each.parent for each in filled] == [root_hash(), hashes(1)[0]]
    assert [each.block for each in filled] == sequence.block_table[:2]
    cache.computed(sequence, 50)
    assert [each.hash for each in cache.take_filled(99)] == hashes(3)[2:]
    cache.release(sequence)
    assert cache.take_filled(99) == ()


def test_a_block_that_was_evicted_is_not_told() -> None:
    cache = make_cache(num_blocks=4)
    first, second = make_sequence(0, PROMPT), make_sequence(1, [*range(200, 250)])
    cache.admit(first, cache.find(first))
    cache.computed(first, 50)
    cache.release(first)
    cache.admit(second, cache.find(second))
    assert cache.take_filled(99) == ()


def test_restored_blocks_count_as_computed() -> None:
    cache, sequence = make_cache(), make_sequence(0, PROMPT)
    match = cache.find(sequence)
    assert cache.stored_candidates(sequence, match) == tuple(hashes(3))
    restoration = cache.reserve(sequence, match, 3)
    assert restoration is not None
    assert cache.num_free == 5
    awaited = cache.worth_awaiting(sequence, match)
    assert awaited == hashes(3)[2]
    assert awaited in cache.pending
    cache.insert_restored(sequence, restoration, 2)
    assert awaited not in cache.pending
    assert (cache.num_free, cache.num_kept) == (8, 2)
    match = cache.find(sequence)
    assert match.num_tokens == 32
    assert match.blocks == tuple(each.block for each in restoration.blocks[:2])
    assert cache.stored_candidates(sequence, match) == (hashes(3)[2],)
    again = cache.reserve(sequence, match, 1)
    assert again is not None
    assert again.held == match.blocks
    assert cache.num_free == 5, "what comes before it is not evicted meanwhile"
    cache.insert_restored(sequence, again, 1)
    assert cache.find(sequence).num_tokens == 48
    assert cache.num_free == 8
    assert cache.take_filled(99) == (), "what was restored is stored already"


def test_without_room_nothing_is_restored() -> None:
    cache, sequence, other = make_cache(4), make_sequence(0, PROMPT), make_sequence(1, [1] * 40)
    cache.admit(other, cache.find(other))
    assert cache.reserve(sequence, cache.find(sequence), 2) is None
    assert cache.reserve(sequence, cache.find(sequence), 0) is None
    assert cache.num_free == 1


def test_other_salts_share_no_hash() -> None:
    one, sequence = make_cache(), make_sequence(0, PROMPT)
    other = make_cache(salt=b"other")
    same = make_sequence(0, PROMPT, other.root)
    some = one.stored_candidates(sequence, one.find(sequence))
    assert not set(some) & set(other.stored_candidates(same, other.find(same)))


def test_a_sequence_that_shares_blocks_with_live_ones_needs_room_for_the_others_only() -> None:
    cache = make_cache(num_blocks=5)
    first, same, other = (
        make_sequence(0, PROMPT),
        make_sequence(1, PROMPT),
        make_sequence(2, [*range(200, 250)]),
    )
    cache.admit(first, cache.find(first))  # 4 of 5
    assert not cache.may_have_room(same)
    cache.computed(first, 48)
    for sequence, has_room in ((same, True), (other, False)):
        assert cache.may_have_room(sequence) is has_room
        assert cache.has_room(sequence, cache.find(sequence)) is has_room
    cache.release(first)
    assert cache.may_have_room(other)
    assert cache.has_room(other, cache.find(other))
