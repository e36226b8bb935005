"""Several pipelines instead of one: they share nothing, fit in what there is, and are faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.placement.units import candidate, llama_config, work_of

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.cuts import Cut
from potluck.placement.explain import explain
from potluck.placement.links import Link, LinkTable
from potluck.placement.offering import Pool
from potluck.placement.path import Path, ThroughputPath
from potluck.placement.place import place
from potluck.placement.side_by_side import Pipeline, _pipeline, side_by_side
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId, UnitId
from potluck.types.groups import LayoutStage
from potluck.types.placement import Basis, Plan, Preferences

NUM_LAYERS = 8
WORK = work_of(llama_config(NUM_LAYERS))
COST = candidate("any", WORK).cost
WHOLE = sum(COST.layer_bytes) + COST.embedding_bytes + COST.head_bytes + (2 << 20)
SLOW_LINK = Link(latency_seconds=1e-3, bytes_per_second=1e5, basis=Basis.MEASURED)
"""So slow that a stage on another machine costs more than a pipeline of its own."""


def request(
    *candidates: Candidate,
    objective: Objective = Objective.THROUGHPUT,
    num_streams: int = 32,
    pools: tuple[Pool, ...] = (),
    one_machine: str = "",
) -> PlaceRequest:
    """``one_machine`` has the names of the nodes that are on one, a letter each."""
    hosts = {
        each.node_id: "machine" if each.node_id in one_machine else str(each.node_id)
        for each in candidates
    }
    return PlaceRequest(
        candidates=candidates,
        links=LinkTable(network=SLOW_LINK, host_ids=hosts),
        coordinator=candidates[0].node_id,
        preferences=Preferences(objective=objective, num_streams=num_streams),
        max_step_tokens=512,
        pools=pools,
    )


def found(place_request: PlaceRequest) -> tuple[tuple[Pipeline, ...], Plan]:
    plan = place(place_request)
    assert plan is not None
    return side_by_side(place_request, plan), plan


def rate_of(pipelines: tuple[Pipeline, ...]) -> float:
    return sum(each.prediction.total_tokens_per_second for each in pipelines)


def units_of(pipelines: tuple[Pipeline, ...]) -> list[NodeId]:
    return [stage.node_id for each in pipelines for stage in each.stages]


def four(usable_bytes: int = 1 << 40) -> list[Candidate]:
    return [candidate(name, WORK, decode=20.0, usable_bytes=usable_bytes) for name in "abcd"]


def test_pipelines_share_no_unit_and_serve_all_streams_faster() -> None:
    pipelines, plan = found(request(*four()))
    assert len(pipelines) == 4
    assert sorted(units_of(pipelines)) == ["a", "b", "c", "d"]
    assert sum(each.prediction.num_streams for each in pipelines) == 32
    assert plan.prediction is not None
    assert rate_of(pipelines) > 1.02 * plan.prediction.total_tokens_per_second
    for each in pipelines:
        assert each.stages[0].shard.start_layer == 0
        assert each.stages[-1].shard.end_layer == NUM_LAYERS
        assert each.stages[0].shard.has_embedding
        assert each.stages[-1].shard.has_head
        rates = each.prediction
        assert [stage.node_id for stage in rates.stages] == units_of((each,))


def test_a_pipeline_is_predicted_as_its_layout_is() -> None:
    """What is promised is what a deployment with the layout is then predicted to do."""
    pipelines, _ = found(request(*four(usable_bytes=int(0.6 * WHOLE))))
    assert len(pipelines) == 2
    for each in pipelines:
        layout = tuple(
            LayoutStage(
                node_id=stage.node_id,
                unit_id=stage.unit_id,
                num_layers=stage.shard.end_layer - stage.shard.start_layer,
            )
            for stage in each.stages
        )
        place_request = request(*four(usable_bytes=int(0.6 * WHOLE)))
        wishes = replace(
            place_request.preferences, layout=layout, num_streams=each.prediction.num_streams
        )
        plan = place(replace(place_request, preferences=wishes))
        assert plan is not None
        assert plan.stages == each.stages
        assert plan.prediction is not None
        assert plan.prediction.total_tokens_per_second == pytest.approx(
            each.prediction.total_tokens_per_second
        )


def test_the_fastest_comes_first() -> None:
    fast = candidate("fast", WORK, decode=60.0)
    pipelines, _ = found(request(*four(), fast))
    rates = [each.prediction.total_tokens_per_second for each in pipelines]
    assert rates == sorted(rates, reverse=True)
    assert units_of(pipelines[:1]) == ["fast"]


@pytest.mark.slow
@pytest.mark.parametrize("left", [1.1, 2.1, 3.1])
def test_pipelines_take_no_more_of_a_pool_than_it_has(left: float) -> None:
    """Four agents on memory that holds the model so many times, and a machine of its own."""
    pool = Pool(left_bytes=int(left * WHOLE), members=frozenset(range(4)))
    other = candidate("other", WORK, decode=20.0)
    pipelines, _ = found(request(*four(), other, pools=(pool,)))
    assert len(pipelines) >= 2
    taken = sum(
        stage.num_bytes for each in pipelines for stage in each.stages if stage.node_id != "other"
    )
    assert 0 < taken <= pool.left_bytes
    assert "other" in units_of(pipelines)


def test_where_memory_is_left_to_one_of_several_it_is_the_fastest() -> None:
    """Half of it holds no pipeline, and all of it one."""
    units = [
        candidate("slow", WORK, decode=15.0, usable_bytes=int(1.1 * WHOLE)),
        candidate("fast", WORK, decode=20.0, usable_bytes=int(1.1 * WHOLE)),
        candidate("other", WORK, decode=20.0, usable_bytes=int(1.1 * WHOLE)),
    ]
    pool = Pool(left_bytes=int(1.1 * WHOLE), members=frozenset({0, 1}))
    pipelines, _ = found(request(*units, pools=(pool,)))
    assert sorted(units_of(pipelines)) == ["fast", "other"]


@pytest.mark.slow
def test_where_each_has_room_for_a_part_all_of_a_pool_take_part() -> None:
    """Four agents on a machine that holds the model once: a pipeline of several is fastest."""
    units = [candidate(name, WORK, decode=20.0, usable_bytes=2 * WHOLE) for name in "abcd"]
    pool = Pool(left_bytes=int(1.5 * WHOLE), members=frozenset(range(4)))
    other = candidate("other", WORK, decode=20.0)
    pipelines, _ = found(request(*units, other, pools=(pool,), one_machine="abcd"))
    assert len({"a", "b", "c", "d"} & set(units_of(pipelines))) > 1


def test_a_gain_that_is_smaller_than_predictions_are_sure_of_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place_request = request(*four())
    pipelines, plan = found(place_request)
    assert plan.prediction is not None
    gain = rate_of(pipelines) / plan.prediction.total_tokens_per_second - 1
    for bar, num_pipelines in ((gain - 0.01, len(pipelines)), (gain + 0.01, 0)):
        monkeypatch.setattr("potluck.placement.side_by_side._WORTHWHILE", bar)
        assert len(side_by_side(place_request, plan)) == num_pipelines


def test_stages_of_a_pipeline_are_on_its_units_in_any_order() -> None:
    cuts = (Cut(unit=3, start=0, end=4), Cut(unit=1, start=4, end=10))
    path = Path(cuts=cuts, seconds=1.0, bound_seconds=1.0)
    pipeline = _pipeline(
        request(*four()),
        ThroughputPath(path=path, num_in_flight=2, num_sequences=2, num_streams=4),
    )
    assert units_of((pipeline,)) == ["d", "b"]


@pytest.mark.parametrize(
    "place_request",
    [
        pytest.param(request(*four(), objective=Objective.LATENCY), id="latency"),
        pytest.param(request(*four(), num_streams=1), id="one stream"),
        pytest.param(request(four()[0]), id="one unit"),
        pytest.param(request(*four(usable_bytes=int(0.4 * WHOLE))), id="memory for one"),
        pytest.param(
            request(four()[0], candidate("slow", WORK, decode=0.05)), id="a unit of no use"
        ),
    ],
)
def test_where_one_pipeline_is_best_there_are_no_others(place_request: PlaceRequest) -> None:
    assert found(place_request)[0] == ()


def test_of_very_many_streams_the_most_promising_units_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("potluck.placement.side_by_side._MOST_CELLS", 9 * 32)
    slow = [candidate(f"slow-{index}", WORK, decode=10.0) for index in range(4)]
    fast = [candidate(f"fast-{index}", WORK, decode=20.0) for index in range(3)]
    pipelines, _ = found(request(*slow, *fast))
    assert sorted(units_of(pipelines)) == ["fast-0", "fast-1", "fast-2"]


def test_pools_are_those_of_the_units_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potluck.placement.side_by_side._MOST_CELLS", 9 * 32)
    slow = [candidate(f"slow-{index}", WORK, decode=10.0) for index in range(4)]
    fast = [candidate(f"fast-{index}", WORK, decode=20.0) for index in range(3)]
    pool = Pool(left_bytes=int(1.1 * WHOLE), members=frozenset({4, 5}))
    pipelines, _ = found(request(*slow, *fast, pools=(pool,)))
    assert "fast-2" in units_of(pipelines)
    assert len(pipelines) == 2


def test_among_many_units_a_pool_is_left_to_its_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potluck.placement.side_by_side._MANY", 2)
    pool = Pool(left_bytes=int(1.5 * WHOLE), members=frozenset({0, 1}))
    pipelines, _ = found(request(*four(), pools=(pool,)))
    assert len(pipelines) == 3
    assert len({"a", "b"} & set(units_of(pipelines))) == 1


def test_it_is_part_of_the_explanation() -> None:
    place_request = request(*four())
    pipelines, plan = found(place_request)
    assert explain(place_request, plan).side_by_side == pipelines
    layout = (LayoutStage(node_id=NodeId("a"), unit_id=UnitId("cpu/native"), num_layers=8),)
    place_request = replace(
        place_request, preferences=replace(place_request.preferences, layout=layout)
    )
    fixed = place(place_request)
    assert fixed is not None
    assert explain(place_request, fixed).side_by_side == ()
    assert side_by_side(place_request, fixed) == ()
