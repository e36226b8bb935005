import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import InsufficientMemoryError
from potluck.placement import proportional
from potluck.placement.proportional import place
from potluck.types.cluster import NodeId, UnitId
from potluck.types.placement import ModelCost, Plan, UnitOffer

CPU = UnitId("cpu/native")


def offer(name: str, usable_bytes: int) -> UnitOffer:
    return UnitOffer(node_id=NodeId(name), unit_id=CPU, usable_bytes=usable_bytes)


def cost(
    num_layers: int = 12,
    layer_bytes: int = 100,
    embedding_bytes: int = 50,
    head_bytes: int = 50,
    shared_bytes: int = 0,
) -> ModelCost:
    return ModelCost(
        layer_bytes=(layer_bytes,) * num_layers,
        embedding_bytes=embedding_bytes,
        head_bytes=head_bytes,
        shared_bytes=shared_bytes,
        scratch_bytes=10,
        process_bytes=20,
        lone_embedding_bytes=embedding_bytes + 30,
        lone_head_bytes=head_bytes + 30,
    )


def layers(plan: Plan) -> dict[str, int]:
    return {stage.node_id: stage.shard.end_layer - stage.shard.start_layer for stage in plan.stages}


def test_equal_units_get_equal_shares() -> None:
    plan = place([offer(name, 10_000) for name in "abc"], cost())
    assert sorted(layers(plan).values()) == [4, 4, 4]
    assert plan.rejections == ()


def test_shares_follow_the_memory() -> None:
    plan = place([offer("big", 9030), offer("small", 3030)], cost(embedding_bytes=0, head_bytes=0))
    assert layers(plan) == {"big": 9, "small": 3}


def test_twelve_units_get_a_layer_each() -> None:
    plan = place([offer(f"node{index:02}", 10_000) for index in range(12)], cost())
    assert set(layers(plan).values()) == {1}


def test_one_unit_holds_everything_and_a_tied_head_once() -> None:
    plan = place([offer("a", 10_000)], cost(shared_bytes=50))
    (stage,) = plan.stages
    assert stage.shard.has_embedding
    assert stage.shard.has_head
    assert stage.num_bytes == 1200 + 50 + 30


def test_small_units_stand_between_when_the_ends_are_heavy() -> None:
    offers = [offer("x", 400), offer("big", 2000), offer("y", 400), offer("large", 2000)]
    plan = place(offers, cost(embedding_bytes=500, head_bytes=500))
    assert {plan.stages[0].node_id, plan.stages[-1].node_id} == {"big", "large"}


def test_a_unit_without_room_for_a_layer_is_told_so() -> None:
    plan = place([offer("a", 5000), offer("tiny", 100), offer("none", -5)], cost())
    assert [(rejection.node_id, rejection.reason) for rejection in plan.rejections] == [
        ("tiny", "100 B usable, but one layer needs 130 B"),
        ("none", "0 B usable, but one layer needs 130 B"),
    ]


def test_a_unit_whose_share_is_less_than_a_layer_gets_nothing() -> None:
    plan = place([offer("huge", 10**9), offer("board", 200)], cost())
    assert layers(plan) == {"huge": 12}
    assert plan.rejections[0].reason == "its share of the memory is less than one layer"


def test_hundreds_of_units_are_not_all_arranged(monkeypatch: pytest.MonkeyPatch) -> None:
    arranged: list[int] = []
    orders = proportional._orders

    def counted(candidates: Sequence[UnitOffer]) -> Iterator[tuple[UnitOffer, ...]]:
        arranged.append(len(candidates))
        return orders(candidates[:12])

    monkeypatch.setattr(proportional, "_orders", counted)
    plan = place([offer(f"node{index:03}", 10_000 + index) for index in range(400)], cost())
    assert arranged == [12]
    assert set(layers(plan)) == {f"node{index}" for index in range(388, 400)}
    assert len(plan.rejections) == 388


def test_a_unit_that_is_too_small_for_an_end_does_not_spoil_the_plan() -> None:
    plan = place(
        [offer("big", 10_000), offer("small", 300)], cost(head_bytes=500, embedding_bytes=500)
    )
    assert layers(plan) == {"big": 12}
    assert "too small" in plan.rejections[0].reason


def test_what_does_not_fit_says_how_many_more_nodes_would_help() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        place([offer("a", 530), offer("b", 530)], cost())
    assert "are usable on 2 units" in caught.value.message
    assert "add 1 more node with as much memory as the largest" in caught.value.hint
    place([offer("a", 530), offer("b", 530), offer("c", 530)], cost())


@pytest.mark.parametrize(
    ("usable", "changes", "part"),
    [
        (100, {}, "at least 130 B for a layer; every stage needs 30 B for its process"),
        (300, {"embedding_bytes": 500}, "at least 530 B for the embedding"),
        (300, {"head_bytes": 700, "embedding_bytes": 500}, "at least 730 B for the head"),
    ],
)
def test_more_nodes_on_which_a_part_does_not_fit_are_not_suggested(
    usable: int, changes: dict[str, int], part: str
) -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        place([offer(name, usable) for name in "abcdefghijkl"], cost(**changes))
    assert part in caught.value.hint
    assert "add" not in caught.value.hint


def test_units_with_room_for_empty_layers_only_get_no_suggestion() -> None:
    mapped = dataclasses.replace(cost(embedding_bytes=0, head_bytes=0), layer_bytes=(0, 100, 100))
    with pytest.raises(InsufficientMemoryError) as caught:
        place([offer("a", 30), offer("b", 30)], mapped)
    assert not caught.value.hint


def test_a_unit_on_which_a_stage_takes_less_can_hold_more() -> None:
    # Of the 30 that a stage takes besides its parts, 25 are spared on one of them.
    frugal = dataclasses.replace(offer("a", 1205), spared_bytes=25)
    twelve = cost(embedding_bytes=0, head_bytes=0)
    (stage,) = place([frugal], twelve).stages
    assert stage.num_bytes == 1205
    with pytest.raises(InsufficientMemoryError) as caught:
        place([dataclasses.replace(frugal, usable_bytes=1204)], twelve)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (1205, 1204)
    with pytest.raises(InsufficientMemoryError):
        place([offer("a", 1205)], twelve)
    # Where one layer takes 105 and may use 104, the reason has these numbers.
    tiny = dataclasses.replace(offer("b", 104), spared_bytes=25)
    (rejection,) = place([frugal, tiny], twelve).rejections
    assert rejection.reason == "104 B usable, but one layer needs 105 B"
    # An end that stands alone takes 580 elsewhere.
    ends = [dataclasses.replace(offer(name, 555), spared_bytes=25) for name in "abc"]
    heavy = cost(num_layers=5, embedding_bytes=550, head_bytes=550)
    assert [stage.num_bytes for stage in place(ends, heavy).stages] == [555, 505, 555]


def test_an_end_stands_alone_only_where_the_model_does_not_fit_otherwise() -> None:
    small = [offer("a", 630), offer("b", 630), offer("c", 630)]
    heavy = cost(num_layers=5, embedding_bytes=550, head_bytes=550)
    plan = place(small, heavy)
    assert [stage.shard.end_layer - stage.shard.start_layer for stage in plan.stages] == [0, 5, 0]
    assert plan.stages[0].shard.has_embedding
    assert plan.stages[2].shard.has_head
    assert [stage.num_bytes for stage in plan.stages] == [580, 530, 580]
    assert plan.rejections == ()
    roomy = place([offer("a", 730), offer("b", 730), offer("c", 730)], heavy)
    assert [s.shard.end_layer - s.shard.start_layer for s in roomy.stages] == [1, 3, 1]


def test_fourteen_small_boards_hold_what_one_of_them_could_not_hold_a_part_of() -> None:
    """Llama 3 8B in MiB: an embedding or a head fills a board, and three layers do."""
    boards = [offer(f"board{index:02}", 1430) for index in range(14)]
    llama = cost(num_layers=32, layer_bytes=416, embedding_bytes=1002, head_bytes=1002)
    plan = place(boards, llama)
    counts = [stage.shard.end_layer - stage.shard.start_layer for stage in plan.stages]
    assert counts[0] == counts[-1] == 0
    assert sorted(counts[1:-1]) == [2] * 4 + [3] * 8
    with pytest.raises(InsufficientMemoryError):
        place(boards[:12], llama)


def test_a_unit_too_small_for_a_layer_can_hold_an_end() -> None:
    plan = place([offer("a", 1030), offer("tiny", 120)], cost(10, embedding_bytes=90, head_bytes=0))
    assert layers(plan) == {"tiny": 0, "a": 10}
    assert plan.stages[0].node_id == "tiny"
    with pytest.raises(InsufficientMemoryError):
        place([offer("a", 1030), offer("tiny", 110)], cost(10, embedding_bytes=90, head_bytes=0))


def test_a_unit_that_offers_nothing_can_hold_what_takes_nothing() -> None:
    parts = cost(num_layers=1, layer_bytes=1, embedding_bytes=0, head_bytes=1)
    parts = dataclasses.replace(
        parts, scratch_bytes=0, process_bytes=0, lone_embedding_bytes=0, lone_head_bytes=1
    )
    with pytest.raises(InsufficientMemoryError):
        place([offer("a", 0), offer("b", 0), offer("c", 1)], parts)


def test_layers_that_share_a_cache_stay_together() -> None:
    """What is not cut apart counts as one layer: four of three layers each."""
    groups = dataclasses.replace(cost(), no_cuts=frozenset(range(1, 12)) - {3, 6, 9})
    plan = place([offer("big", 10_000), offer("small", 600)], groups)
    assert {stage.shard.start_layer for stage in plan.stages} <= {0, 3, 6, 9}
    small = place([offer("big", 10_000), offer("tiny", 300)], groups)
    assert small.rejections[0].reason == "300 B usable, but one layer needs 330 B"
    whole = dataclasses.replace(cost(), no_cuts=frozenset(range(12)))
    with pytest.raises(InsufficientMemoryError):
        place([offer("a", 1000), offer("b", 1000)], whole)
    plan = place([offer("a", 1000), offer("b", 2000)], whole)
    assert layers(plan)["b"] == 12
    # An end alone fits beside all the rest on another unit.
    ends = [offer("a", 100), offer("b", 1290)]
    assert [stage.node_id for stage in place(ends, whole).stages] == ["b", "a"]
    first = dataclasses.replace(whole, no_cuts=frozenset(range(1, 13)))
    assert [stage.node_id for stage in place(ends, first).stages] == ["a", "b"]
    with pytest.raises(InsufficientMemoryError):
        place(ends, dataclasses.replace(whole, no_cuts=frozenset(range(13))))
    assert plan.stages[0].shard.has_embedding


def test_no_units_at_all() -> None:
    with pytest.raises(InsufficientMemoryError, match="0 units"):
        place([], cost())


offers = st.lists(st.integers(0, 3000), min_size=1, max_size=6).map(
    lambda sizes: [offer(f"node{index}", size) for index, size in enumerate(sizes)]
)


def generated(lone_saves: int, **parts: Any) -> ModelCost:
    """An end without a layer saves scratch."""
    saved = min(lone_saves, parts["scratch_bytes"])
    fixed = parts["scratch_bytes"] + parts["process_bytes"] - saved
    return ModelCost(
        lone_embedding_bytes=parts["embedding_bytes"] + fixed,
        lone_head_bytes=parts["head_bytes"] + fixed,
        **parts,
    )


costs = st.builds(
    generated,
    lone_saves=st.integers(0, 50),
    layer_bytes=st.lists(st.integers(1, 200), min_size=1, max_size=12).map(tuple),
    embedding_bytes=st.integers(0, 300),
    head_bytes=st.integers(0, 300),
    shared_bytes=st.just(0),
    scratch_bytes=st.integers(0, 50),
    process_bytes=st.integers(0, 50),
    no_cuts=st.frozensets(st.integers(0, 12), max_size=6),
)


@pytest.mark.slow
@given(offers=offers, cost=costs)
def test_every_layer_is_placed_once_within_each_units_memory(
    offers: list[UnitOffer], cost: ModelCost
) -> None:
    try:
        plan = place(offers, cost)
    except InsufficientMemoryError:
        extra = cost.embedding_bytes + cost.head_bytes
        alone = sum(cost.layer_bytes) + extra + cost.scratch_bytes + cost.process_bytes
        assert max(each.usable_bytes for each in offers) < alone
        return
    placed = [
        layer
        for stage in plan.stages
        for layer in range(stage.shard.start_layer, stage.shard.end_layer)
    ]
    assert placed == list(range(len(cost.layer_bytes)))
    usable = {each.node_id: each.usable_bytes for each in offers}
    assert all(stage.num_bytes <= usable[stage.node_id] for stage in plan.stages)
    for stage in plan.stages[1:-1]:
        assert stage.shard.end_layer > stage.shard.start_layer
    assert not cost.no_cuts & {stage.shard.start_layer for stage in plan.stages[1:]}
    assert {stage.shard.num_layers for stage in plan.stages} == {len(cost.layer_bytes)}
    assert [stage.shard.has_embedding for stage in plan.stages].count(True) == 1
    assert plan.stages[0].shard.has_embedding
    assert plan.stages[-1].shard.has_head
    named = [stage.node_id for stage in plan.stages] + [each.node_id for each in plan.rejections]
    assert sorted(named) == sorted(usable)
    assert place(offers[::-1], cost) == plan
