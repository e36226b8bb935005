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
    with pytest.raises(ValueError, match="3 blocks asked for, 2 free"):
        pool.take(3)
    assert pool.num_free == 2


def test_a_block_cannot_come_back_twice() -> None:
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.give_back(taken)
    with pytest.raises(ValueError, match="block 0 is not in use"):
        pool.give_back(taken)
