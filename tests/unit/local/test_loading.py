import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import ParameterError
from potluck.local.loading import split_evenly


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_every_layer_is_in_one_stage_and_stages_are_alike(sizes: tuple[int, int]) -> None:
    num_layers, num_stages = sizes
    shards = split_evenly(num_layers, num_stages)
    layers = [layer for shard in shards for layer in range(shard.start_layer, shard.end_layer)]
    assert layers == list(range(num_layers))
    lengths = [shard.end_layer - shard.start_layer for shard in shards]
    assert max(lengths) - min(lengths) <= 1
    assert [shard.has_embedding for shard in shards] == [True] + [False] * (num_stages - 1)
    assert [shard.has_head for shard in shards] == [False] * (num_stages - 1) + [True]


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(1, n), st.frozensets(st.integers(1, n)))
    )
)
def test_a_model_is_cut_only_where_it_can_be(sizes: tuple[int, int, frozenset[int]]) -> None:
    num_layers, num_stages, no_cuts = sizes
    possible = [layer for layer in range(1, num_layers) if layer not in no_cuts]
    if num_stages > len(possible) + 1:
        with pytest.raises(ParameterError) as caught:
            split_evenly(num_layers, num_stages, no_cuts)
        assert caught.value.name == "stages"
        return
    shards = split_evenly(num_layers, num_stages, no_cuts)
    assert len(shards) == num_stages
    layers = [layer for shard in shards for layer in range(shard.start_layer, shard.end_layer)]
    assert layers == list(range(num_layers))
    assert all(shard.start_layer < shard.end_layer for shard in shards)
    assert not no_cuts & {shard.start_layer for shard in shards[1:]}


def test_a_model_that_cannot_be_cut_says_so() -> None:
    with pytest.raises(ParameterError, match="share keys and values") as caught:
        split_evenly(12, 3, set(range(1, 12)) - {5})
    assert caught.value.hint == "use a number from 1 to 2"
    with pytest.raises(ParameterError) as caught:
        split_evenly(12, 2, range(1, 12))
    assert caught.value.hint == "omit --stages"


@pytest.mark.parametrize("num_stages", [0, -1, 13])
def test_impossible_numbers_of_stages(num_stages: int) -> None:
    with pytest.raises(ParameterError) as caught:
        split_evenly(12, num_stages)
    assert caught.value.name == "stages"
    assert caught.value.hint == "use a number from 1 to 12"
