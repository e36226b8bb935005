import pytest

from potluck.scheduling.blocks import BlockPool, blocks_for


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)]
)
def test_blocks_for(num_tokens: int, num_blocks: int) -> None:
    assert blocks_for(num_tokens) == num_blocks


def test_low_blocks_are_used_first_and_come_back() -> None:
    pool = BlockPool(4)
    assert pool.take(3) == [0, 1, 2]
    pool.give_back([1])
    assert pool.num_free == 2
    assert sorted(pool.take(2)) == [1, 3]


def test_more_than_is_free_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks requested, but only 2 are free"):
        pool.take(3)
    assert pool.num_free == 2


def test_a_block_cannot_come_back_twice() -> None:
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.give_back(taken)
    with pytest.raises(ValueError, match="block 0 is not in use"):
        pool.give_back(taken)


def test_a_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.hold([block])
    pool.give_back([block])
    assert pool.is_held(block)
    assert pool.num_free == 1
    pool.give_back([block])
    assert pool.num_free == 2
    with pytest.raises(ValueError, match="block 0 has no content to share"):
        pool.hold([block])


def test_kept_blocks_are_taken_last_and_the_oldest_first() -> None:
    evicted: list[int] = []
    pool = BlockPool(4, evicted.append)
    taken = pool.take(3)
    for block in taken:
        pool.keep(block)
    pool.give_back([2, 0, 1])
    assert (pool.num_free, pool.num_idle) == (4, 3)
    pool.touch(2)
    pool.hold([0])
    assert pool.take(2) == [3, 1]
    assert evicted == [1]
    pool.discard(2)
    assert (pool.num_free, pool.num_idle) == (1, 0)
    assert pool.take(1) == [2]
    assert evicted == [1], "nothing was lost with it"
