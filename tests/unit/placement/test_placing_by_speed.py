"""Where a model goes when speed counts: units of one node together, and one budget of memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import pytest
from support.cluster.node_reports import node_report, own_pool
from support.engines import reference_backend
from support.placement.units import llama_config, profile_of, rates

from potluck.engines.backends import BACKENDS, cost_of
from potluck.engines.loading.sizes import on_unit
from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.placement.model_counting import counting_of
from potluck.placement.placing import Placed, Placement
from potluck.placement.prediction import MARGINS
from potluck.placement.snapshot import ClusterSnapshot
from potluck.placement.stage_reuse import Holding
from potluck.types.choices import Objective
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.groups import LayoutStage
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPool
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import Basis, PlacedStage, Preferences
from potluck.types.program import Shard
from potluck.types.speed import LinkSpeed, NodeSpeeds, StepTime
from potluck.types.stage import StageSize
from potluck.types.unit import Role

GIB = 2**30
NUM_LAYERS = 8
SIZE = StageSize(context_tokens=256, num_blocks=16, max_step_tokens=64, num_threads=2)
PROFILE = profile_of(llama_config(NUM_LAYERS))
COUNTING = counting_of(PROFILE, partial(cost_of, backends=(*BACKENDS, reference_backend.SPEC)))
CPU = UnitId("cpu/native")
GPU = UnitId("gpu/reference")


def unit(
    unit_id: UnitId,
    decode: float,
    usable: int = 8 * GIB,
    *,
    role: Role = Role.SERVES,
    is_shared: bool = True,
) -> UnitReport:
    return UnitReport(
        unit_id=unit_id,
        backend=unit_id.rpartition("/")[2],
        description="",
        usable_bytes=usable,
        is_shared=is_shared,
        num_threads=2,
        max_threads=2,
        role=role,
        reason="" if role is Role.SERVES else "slower than the other",
        rates=rates(decode, 10 * decode),
    )


def node(name: str, *units: UnitReport, usable: int = 8 * GIB) -> NodeReport:
    return node_report(name, *units, usable_bytes=usable, pools=(own_pool(name, 64 * GIB),))


def snapshot(*nodes: NodeReport, **changes: object) -> ClusterSnapshot:
    known = ClusterSnapshot(
        reports=nodes, able=nodes, coordinator=nodes[0].node_id, preferences=Preferences()
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def placed(*nodes: NodeReport, **changes: object) -> Placed:
    return Placement(COUNTING, snapshot(*nodes, **changes)).of(SIZE, may_quantize=False)


def where(found: Placed) -> list[tuple[str, str, int, int]]:
    return [
        (stage.node_id, stage.unit_id, stage.shard.start_layer, stage.shard.end_layer)
        for stage in found.plan.stages
    ]


def bytes_on(report: UnitReport, num_layers: int = NUM_LAYERS) -> int:
    """What the first layers of the model take with the embedding, on a unit."""
    is_whole = num_layers == NUM_LAYERS
    shard = Shard(
        start_layer=0,
        end_layer=num_layers,
        num_layers=NUM_LAYERS,
        has_embedding=True,
        has_head=is_whole,
    )
    memory = COUNTING.stage(shard, on_unit(SIZE, report, COUNTING.abilities(report.backend))).memory
    return memory.total_bytes if report.is_shared else memory.device_bytes


def test_a_model_stays_on_the_one_unit_where_it_is_fastest() -> None:
    slow, fast = node("a", unit(CPU, 20.0)), node("b", unit(CPU, 200.0))
    assert where(placed(slow, fast)) == [("b", CPU, 0, NUM_LAYERS)]
    # Nearness to the coordinator decides between equals.
    assert where(placed(fast, node("c", unit(CPU, 200.0)))) == [("b", CPU, 0, NUM_LAYERS)]


def test_layers_go_by_speed_where_the_model_has_no_room_on_one_unit() -> None:
    tight = bytes_on(unit(CPU, 1.0), 6)
    slow = node("a", unit(CPU, 20.0, tight), usable=tight)
    fast = node("b", unit(CPU, 200.0, tight), usable=tight)
    layers = {place[0]: place[3] - place[2] for place in where(placed(slow, fast))}
    assert sum(layers.values()) == NUM_LAYERS
    assert layers["b"] > layers["a"]


def test_a_card_and_the_cpu_beside_it_both_hold_stages_where_the_card_is_too_small() -> None:
    card = unit(GPU, 400.0, is_shared=False)
    small = msgspec.structs.replace(card, usable_bytes=bytes_on(card, 5))
    cpu = unit(CPU, 40.0, role=Role.RESERVE)
    found = placed(node("a", small, cpu))
    assert {place[1] for place in where(found)} == {CPU, GPU}
    on_card = next(place for place in where(found) if place[1] == GPU)
    assert on_card[3] - on_card[2] >= 4
    # With room for all of it there is no second stage.
    assert [place[1] for place in where(placed(node("a", card, cpu)))] == [GPU]


def test_a_cpu_and_a_gpu_that_share_memory_have_one_budget() -> None:
    gpu = unit(GPU, 400.0)
    needed = max(bytes_on(gpu), bytes_on(unit(CPU, 1.0)))
    for usable, fits in ((2 * needed, True), (needed // 2, False)):
        units = (
            msgspec.structs.replace(gpu, usable_bytes=usable),
            unit(CPU, 40.0, usable, role=Role.RESERVE),
        )
        shared = msgspec.structs.replace(
            node("a", *units, usable=usable),
            pools=(MemoryPool(pool_id="a", limit_bytes=usable, available_bytes=usable),),
        )
        if not fits:  # twice half of it is no more than half of it
            with pytest.raises(InsufficientMemoryError):
                placed(shared)
            continue
        found = placed(shared)
        assert sum(stage.num_bytes for stage in found.plan.stages) <= usable


def test_what_workers_measured_counts_more_than_a_trial() -> None:
    promising, steady = node("a", unit(CPU, 300.0)), node("b", unit(CPU, 200.0))
    assert where(placed(promising, steady))[0][0] == "a"
    shape = COUNTING.work(SIZE).shape(SIZE.arithmetic)
    slow = StepTime(
        num_layers=NUM_LAYERS,
        has_embedding=True,
        has_head=True,
        num_sequences=1,
        num_tokens=1,
        context_tokens=100,
        seconds=0.2,
        num_samples=200,
    )
    speeds = {NodeId("a"): NodeSpeeds(node_id=NodeId("a"), step_times={shape: {CPU: (slow,)}})}
    assert where(placed(promising, steady, speeds=speeds))[0][0] == "b"


def test_a_link_that_is_slow_counts() -> None:
    near, far = node("a", unit(CPU, 100.0)), node("b", unit(CPU, 150.0))
    assert where(placed(near, far))[0][0] == "b"
    link = LinkSpeed(
        node_id=NodeId("b"),
        latency_seconds=0.05,
        bytes_per_second=1e7,
        num_samples=4,
        age_seconds=1.0,
    )
    speeds = {NodeId("a"): NodeSpeeds(node_id=NodeId("a"), links=(link,))}
    assert where(placed(near, far, speeds=speeds))[0][0] == "a"


def test_a_layout_is_taken_as_it_is_or_refused() -> None:
    nodes = (node("a", unit(CPU, 20.0)), node("b", unit(CPU, 200.0)))

    def with_layout(*layers: tuple[str, int]) -> Placed:
        layout = tuple(
            LayoutStage(node_id=NodeId(name), unit_id=CPU, num_layers=num) for name, num in layers
        )
        return placed(*nodes, preferences=Preferences(layout=layout))

    found = with_layout(("a", 5), ("b", 3))
    assert where(found) == [("a", CPU, 0, 5), ("b", CPU, 5, 8)]
    assert found.plan.prediction is not None
    assert found.plan.prediction.tokens_per_second > 0
    for layers, problem in (
        ((("a", 5), ("b", 4)), "9 layers, but the model has 8"),
        ((("a", 5), ("c", 3)), "cpu/native on node c cannot be used"),
        ((("a", 4), ("a", 4)), "two stages on a cpu/native"),
        ((("a", 4), ("b", 0), ("a", 4)), "no layer"),
    ):
        with pytest.raises(ParameterError, match=problem):
            with_layout(*layers)


def held(stage: PlacedStage, size: StageSize) -> Holding:
    return Holding(
        node_id=stage.node_id,
        stage=HeldStage(
            deployment=DeploymentId("d"),
            epoch=Epoch(number=1, coordinator=NodeId("a")),
            unit_id=stage.unit_id,
            shard=stage.shard,
            context_tokens=size.context_tokens,
            num_blocks=size.num_blocks,
            quantization=size.quantization,
            arithmetic=size.arithmetic,
            is_mapped=size.is_mapped,
            num_bytes=stage.num_bytes,
            device_bytes=0,
        ),
    )


def test_what_is_held_stays_unless_a_plan_is_made_anew() -> None:
    slow = node("a", unit(CPU, 20.0))
    stages = placed(slow).plan.stages
    holdings = [held(each, SIZE) for each in stages]
    taken = sum(each.num_bytes for each in stages)
    left = 8 * GIB - taken
    slow = node("a", unit(CPU, 20.0, left), usable=left)
    fast = node("b", unit(CPU, 200.0))
    assert where(placed(slow, fast, held=holdings))[0][0] == "a"
    anew = placed(slow, fast, held=holdings, from_scratch=True)
    assert where(anew)[0][0] == "b"
    # The fast one has room beside; the stages that are held need not be released first.
    assert not anew.needs_room
    # Where the best plan has no room beside what is held, that is said.
    tight = node("a", unit(CPU, 500.0, 1), usable=1)
    other = [
        replace(each, stage=msgspec.structs.replace(each.stage, num_blocks=999))
        for each in holdings
    ]
    assert placed(tight, held=other, from_scratch=True).needs_room


def test_a_gap_is_filled_by_speed() -> None:
    nodes = (
        node("a", unit(CPU, 100.0)),
        node("b", unit(CPU, 10.0, 16 * GIB), usable=16 * GIB),
        node("c", unit(CPU, 100.0)),
    )
    shard = Shard(
        start_layer=0, end_layer=4, num_layers=NUM_LAYERS, has_embedding=True, has_head=False
    )
    kept = held(PlacedStage(node_id=NodeId("a"), unit_id=CPU, shard=shard, num_bytes=2**20), SIZE)
    found = placed(*nodes, held=[kept])
    assert where(found)[0] == ("a", CPU, 0, 4)
    assert {place[0] for place in where(found)} <= {"a", "c"}
    by_memory = Preferences(objective=Objective.MEMORY)
    assert "b" in {place[0] for place in where(placed(*nodes, held=[kept], preferences=by_memory))}


def test_a_unit_that_hardly_helps_gets_nothing() -> None:
    """The embedding alone would free the fast unit of microseconds."""
    fast, slow = node("a", unit(CPU, 500.0)), node("b", unit(CPU, 1.0))
    throughput = Preferences(objective=Objective.THROUGHPUT)
    assert where(placed(fast, slow, preferences=throughput)) == [("a", CPU, 0, NUM_LAYERS)]


def test_the_way_within_a_machine_widens_no_margin() -> None:
    found = placed(node("a", unit(CPU, 100)))
    assert found.plan.prediction is not None
    prediction = found.plan.prediction
    margin = MARGINS[Basis.MEASURED]
    assert margin < prediction.margin < margin + 0.01
    assert prediction.link_basis is None


def cut_off(*pairs: tuple[str, str]) -> dict[NodeId, NodeSpeeds]:
    """The reports of two nodes that cannot connect to each other from either side."""
    closed: dict[NodeId, tuple[NodeId, ...]] = {}
    for one, other in pairs:
        for a, b in ((one, other), (other, one)):
            closed[NodeId(a)] = (*closed.get(NodeId(a), ()), NodeId(b))
    return {node: NodeSpeeds(node_id=node, unreachable=others) for node, others in closed.items()}


def test_what_is_held_does_not_stay_where_neighbours_cannot_connect() -> None:
    nodes = [node(name, unit(CPU, 100.0)) for name in "abc"]
    halves = [
        Shard(
            start_layer=start,
            end_layer=start + 4,
            num_layers=NUM_LAYERS,
            has_embedding=start == 0,
            has_head=start > 0,
        )
        for start in (0, 4)
    ]
    holdings = [
        held(PlacedStage(node_id=NodeId(name), unit_id=CPU, shard=shard, num_bytes=2**20), SIZE)
        for name, shard in zip("bc", halves, strict=True)
    ]
    assert [place[0] for place in where(placed(*nodes, held=holdings))] == ["b", "c"]
    parted = where(placed(*nodes, held=holdings, speeds=cut_off(("b", "c"))))
    assert {"b", "c"} - {place[0] for place in parted}
    # Where there is no other plan, the reason why this one fails is shown when it connects.
    alone = [node("a", unit(CPU, 100.0, 1), usable=1), *nodes[1:]]
    everything = cut_off(("a", "b"), ("a", "c"), ("b", "c"))
    kept = placed(*alone, held=holdings, speeds=everything)
    assert [place[0] for place in where(kept)] == ["b", "c"]


def test_a_plan_by_memory_does_without_a_node_that_its_neighbours_cannot_connect_to() -> None:
    nodes = [node(name, unit(CPU, 100.0)) for name in "abcd"]
    by_memory = Preferences(objective=Objective.MEMORY)
    row = [place[0] for place in where(placed(*nodes, preferences=by_memory))]
    assert sorted(row) == list("abcd")
    middle = (row[1], row[2])
    parted = where(placed(*nodes, preferences=by_memory, speeds=cut_off(middle)))
    assert len(parted) == 3
    assert len({place[0] for place in parted} & set(middle)) == 1
