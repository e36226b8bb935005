"""Gaps between stages that are held are filled where a step then takes the least time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.placement.units import candidate, llama_config, work_of

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.cuts import cut_of
from potluck.placement.filling import fill_by_speed
from potluck.placement.links import LinkTable
from potluck.placement.place import problem_of
from potluck.placement.stage_reuse import Gap
from potluck.types.cluster import NodeId
from potluck.types.placement import PlacedStage, Preferences, UnitOffer

NUM_LAYERS = 6
WORK = work_of(llama_config(NUM_LAYERS))


def requested(candidates: list[Candidate]) -> PlaceRequest:
    return PlaceRequest(
        candidates=tuple(candidates),
        links=LinkTable(),
        coordinator=NodeId("a"),
        preferences=Preferences(),
        max_step_tokens=128,
    )


def filled(
    candidates: list[Candidate],
    start: int,
    end: int,
    before: Candidate | None,
    after: Candidate | None,
    usable: list[int] | None = None,
) -> list[PlacedStage] | None:
    units = [(each.node_id, each.unit_id) for each in candidates]
    gap = Gap(
        start=start,
        end=end,
        before=None if before is None else (before.node_id, before.unit_id),
        after=None if after is None else (after.node_id, after.unit_id),
        left={
            unit: UnitOffer(node_id=unit[0], unit_id=unit[1], usable_bytes=num_bytes)
            for unit, num_bytes in zip(
                units, usable or [each.usable_bytes for each in candidates], strict=True
            )
        },
        busy=set(),
        cost=candidates[0].cost,
    )
    return fill_by_speed(requested(candidates))(gap)


def test_the_fastest_unit_with_room_fills_a_gap() -> None:
    slow, fast, fastest = (
        candidate(name, WORK, decode=decode)
        for name, decode in (("a", 5.0), ("b", 100.0), ("c", 400.0))
    )
    stages = filled([slow, fast, fastest], 3, 6, slow, fast)
    assert stages is not None
    assert [(each.node_id, each.shard.start_layer, each.shard.end_layer) for each in stages] == [
        ("c", 2, 5)
    ]
    # The one after the gap needs no further hop, so that a slightly faster one is not worth it.
    nearly = candidate("c", WORK, decode=101.0)
    stages = filled([slow, fast, nearly], 3, 6, slow, fast)
    assert stages is not None
    assert [each.node_id for each in stages] == ["b"]


@settings(max_examples=60)
@given(
    start=st.integers(0, NUM_LAYERS + 1),
    length=st.integers(1, NUM_LAYERS + 2),
    decodes=st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=3),
    shares=st.lists(st.floats(0.0, 1.2), min_size=3, max_size=3),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_a_gap_is_filled_without_holes_and_within_memory(
    start: int,
    length: int,
    decodes: list[float],
    shares: list[float],
    ends: tuple[bool, bool],
) -> None:
    end = min(start + length, NUM_LAYERS + 2)
    candidates = [
        candidate(name, WORK, decode=decode) for name, decode in zip("abc", decodes, strict=False)
    ]
    cost = candidates[0].cost
    whole = sum(cost.layer_bytes) + cost.embedding_bytes + cost.head_bytes + 2 * cost.scratch_bytes
    usable = [int(share * whole) for share in shares[: len(candidates)]]
    before = candidates[0] if ends[0] and start else None
    after = candidates[-1] if ends[1] and end < NUM_LAYERS + 2 else None
    stages = filled(candidates, start, end, before, after, usable)
    if stages is None:
        # No unit has room for all of it.
        problem = problem_of(requested(candidates), 1)
        needed = problem.item_bytes[:, start:end].sum(axis=1) + problem.stage_bytes
        assert np.all(needed > np.array(usable))
        return
    names = [str(each.node_id) for each in candidates]
    cuts = [cut_of(names.index(str(each.node_id)), each.shard) for each in stages]
    assert [cut.start for cut in cuts] == [start, *(cut.end for cut in cuts[:-1])]
    assert cuts[-1].end == end
    problem = replace(
        problem_of(requested(candidates), 1), usable_bytes=np.array(usable, dtype=np.int64)
    )
    for cut, stage in zip(cuts, stages, strict=True):
        assert problem.bytes_of(cut) == stage.num_bytes <= usable[cut.unit]


def test_a_gap_is_not_cut_between_layers_that_share_a_cache() -> None:
    sharing = [
        replace(each, cost=replace(each.cost, no_cuts=frozenset({3, 4})))
        for each in (candidate(name, WORK) for name in "abc")
    ]
    layer = sharing[0].cost.layer_bytes[0]
    fixed = sharing[0].cost.scratch_bytes + sharing[0].cost.process_bytes
    room = [3 * layer + fixed, 3 * layer + fixed, 0]
    # Layers 1 to 4 are missing, of which 2 to 4 stay together.
    stages = filled(sharing, 2, 6, sharing[2], sharing[2], usable=room)
    assert stages is not None
    assert [(each.shard.start_layer, each.shard.end_layer) for each in stages] == [(1, 2), (2, 5)]
    assert filled(sharing, 2, 6, sharing[2], sharing[2], usable=[2 * layer + fixed] * 3) is None
