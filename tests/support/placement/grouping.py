"""Requests for plans in which units may form groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from support.placement.group_costs import cost_with_groups
from support.placement.units import candidate, llama_config, profile_of

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.costs import Counting, member_cost, model_cost
from potluck.placement.links import Link, LinkTable
from potluck.placement.model_counting import counting_of
from potluck.types.choices import Quantization
from potluck.types.cluster import NodeId
from potluck.types.groups import group_ranges
from potluck.types.model import ModelConfig
from potluck.types.placement import Basis, ModelCost, PlacedStage, Plan, Preferences
from potluck.types.stage import StageSize

FAST = Link(latency_seconds=20e-6, bytes_per_second=1.2e9, basis=Basis.MEASURED)
WIRED = Link(latency_seconds=120e-6, bytes_per_second=117e6, basis=Basis.MEASURED)
WIRELESS = Link(latency_seconds=3e-3, bytes_per_second=20e6, basis=Basis.MEASURED)

LARGE = llama_config(
    16,
    hidden_size=2048,
    intermediate_size=8192,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    vocab_size=32768,
)
"""About a billion weights."""
SIZE = StageSize(
    context_tokens=1024,
    num_blocks=64,
    max_step_tokens=512,
    num_threads=4,
    quantization=Quantization.Q8_0,
)


@cache
def counting(config: ModelConfig = LARGE) -> Counting:
    """Return how a model is counted for engines that can join groups."""
    return counting_of(profile_of(config), cost_with_groups)


def joining(
    name: str,
    decode: float = 100.0,
    *,
    config: ModelConfig = LARGE,
    size: StageSize = SIZE,
    usable_bytes: int = 1 << 40,
    usable_share: float = 1.0,
) -> Candidate:
    """Return a unit of that many tokens per second of the trial, which can join groups."""
    counted = counting(config)
    plain = candidate(
        name,
        counted.work(size),
        decode=decode,
        prefill=10 * decode,
        usable_bytes=usable_bytes,
        usable_share=usable_share,
    )
    return replace(
        plain,
        cost=_cost(config, size),
        divided_cost=lambda part: member_cost(counted, size, part),
    )


@cache
def _cost(config: ModelConfig, size: StageSize) -> ModelCost:
    return model_cost(counting(config), size)


def group_request(
    units: Sequence[Candidate],
    link: Link = WIRED,
    *,
    config: ModelConfig = LARGE,
    size: StageSize = SIZE,
    preferences: Preferences | None = None,
    links: LinkTable | None = None,
) -> PlaceRequest:
    """Return what there is to choose from, with one link between any two nodes."""
    divided = counting(config).divided
    assert divided is not None
    return PlaceRequest(
        candidates=tuple(units),
        links=links or LinkTable(network=link),
        coordinator=NodeId("coordinator"),
        preferences=preferences or Preferences(),
        max_step_tokens=size.max_step_tokens,
        divide=lambda shares: divided(size, shares),
    )


def groups_of(plan: Plan) -> list[tuple[PlacedStage, ...]]:
    """Return the stages of the pipeline, each with one unit or the members of a group."""
    ranges = group_ranges(stage.shard.part for stage in plan.stages)
    return [plan.stages[each.start : each.stop] for each in ranges]
