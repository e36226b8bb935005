"""However a program is divided, its members have every part once, and compute the same bits."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.groups import (
    NUM_BLOCKS,
    divided,
    group_factory,
    logits_in_steps,
    reference_member,
)
from support.engines.stages import cut
from support.models.canonical_weights import load_canonical_weights
from support.models.configs import make_config
from support.models.recurrent_configs import LATENT, RECURRENCES

from potluck.models.layers import with_layers
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.models.shares import unit_bounds, vocabulary_bounds
from potluck.types.model import (
    ExpertsConfig,
    HeadNorm,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    RopeConfig,
)
from potluck.types.program import (
    HIDDEN,
    AllGather,
    Attention,
    Embed,
    Head,
    Linear,
    Moe,
    Op,
    Program,
    WeightRole,
    WeightSpec,
)

SHARES = st.lists(st.integers(1, 12), min_size=2, max_size=5).map(tuple)
_REGISTERS = ("x", "y", "q", "k", "v", "gate", "up", "logits", "decay", "beta", "step")
_EXCHANGES = (AllGather, Embed, Head, Moe)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Models whose layers have any of the parts that divide in a way of their own."""
    num_kv_heads = draw(st.sampled_from((1, 2, 3, 4, 6)))
    head_dim = draw(st.sampled_from((8, 16, 24, 32)))
    experts = ExpertsConfig(
        num_experts=5,
        num_experts_per_token=2,
        width=draw(st.sampled_from((16, 48, 96))),
        norm_topk_prob=True,
        has_bias=draw(st.booleans()),
        shared=draw(st.sampled_from((None, MlpConfig(width=80)))),
    )
    plain = make_config(
        num_layers=3,
        hidden_size=draw(st.sampled_from((48, 96, 128))),
        intermediate_size=draw(st.sampled_from((80, 160))),
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        rope=RopeConfig(theta=10000.0, rotary_dim=8),
        tied_head=draw(st.booleans()),
        vocab_size=draw(st.sampled_from((50, 97))),
    )
    kinds = draw(
        st.lists(
            st.sampled_from(("plain", "norms", "gate", "latent", "experts", *RECURRENCES)),
            min_size=3,
            max_size=3,
        )
    )

    def changed(index: int, layer: LayerConfig) -> LayerConfig:
        attention, kind = layer.grouped_attention, kinds[index]
        if kind in RECURRENCES:
            return dataclasses.replace(layer, attention=None, recurrence=RECURRENCES[kind])
        if kind == "latent":
            latent = dataclasses.replace(
                LATENT, num_heads=attention.num_heads, latent_rank=32, value_dim=16
            )
            return dataclasses.replace(layer, attention=latent)
        if kind == "experts":
            return dataclasses.replace(layer, mlp=None, experts=experts)
        changes: dict[str, dict[str, Any]] = {
            "plain": {"head_norm": HeadNorm.HEAD},
            "norms": {"head_norm": HeadNorm.WIDTH, "has_sinks": True},
            "gate": {"has_output_gate": True, "has_sinks": True},
        }
        attention = dataclasses.replace(attention, **changes[kind])
        return dataclasses.replace(layer, attention=attention)

    return with_layers(plain, changed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
    """A model, where it is cut into stages, and the shares that each stage is divided by."""

    config: ModelConfig
    boundaries: tuple[int, ...]
    shares: tuple[int, ...]

    @property
    def programs(self) -> list[Program]:
        """Of the stages, undivided."""
        return [
            build_program(self.config, shard, context_tokens=32, ropes=rope_tables(self.config, 32))
            for shard in cut(self.config.num_layers, self.boundaries)
        ]


DIVISIONS = st.builds(
    Division,
    config=configs(),
    boundaries=st.lists(st.integers(0, 3), max_size=2).map(lambda each: tuple(sorted(each))),
    shares=SHARES,
)


@settings(max_examples=25)
@given(DIVISIONS)
def test_weights_are_divided_without_gap_or_overlap(division: Division) -> None:
    shares = division.shares
    for whole in division.programs:
        members = divided(whole, shares)
        names = [each.name for each in whole.weights]
        assert all([each.name for each in member.weights] == names for member in members)
        for spec, *parts in zip(whole.weights, *(each.weights for each in members), strict=True):
            assert all(each.whole_shape == spec.shape for each in parts)
            assert all((each.role, each.layer) == (spec.role, spec.layer) for each in parts)
            if parts[0].rows is None:
                assert all(each == spec for each in parts)
                continue
            end = 0
            for each in parts:
                assert each.rows is not None
                assert each.shape[each.rows.axis] > 0
                if is_shared(spec):
                    assert each.rows.start <= end
                else:
                    assert each.rows.start == end
                end = each.rows.start + each.shape[each.rows.axis]
            assert end == spec.shape[parts[0].rows.axis]


def is_shared(spec: WeightSpec) -> bool:
    """Whether two members may have the same rows: of a key-value head whose queries they share."""
    return ".attn.k" in spec.name or ".attn.v" in spec.name


@settings(max_examples=25)
@given(DIVISIONS)
def test_what_members_hold_adds_up(division: Division) -> None:
    shares = division.shares
    for whole in division.programs:
        members = divided(whole, shares)
        for spec, *parts in zip(whole.weights, *(each.weights for each in members), strict=True):
            held = sum(math.prod(each.shape) for each in parts)
            if parts[0].rows is None:
                assert held == len(shares) * math.prod(spec.shape)
            elif not is_shared(spec):
                assert held == math.prod(spec.shape)
        for spec, *caches in zip(whole.caches, *(each.caches for each in members), strict=True):
            heads = [each.num_kv_heads for each in caches]
            assert sum(heads) <= spec.num_kv_heads + len(shares) or set(heads) == {
                spec.num_kv_heads
            }
            assert sum(heads) >= spec.num_kv_heads
        assert all(each.states == whole.states for each in members)


@settings(max_examples=25)
@given(DIVISIONS)
def test_members_exchange_the_same_in_the_same_order(division: Division) -> None:
    shares = division.shares
    for whole in division.programs:
        members = divided(whole, shares)
        exchanges = [
            [exchanged(each) for each in member.ops if isinstance(each, _EXCHANGES)]
            for member in members
        ]
        assert all(each == exchanges[0] for each in exchanges)
        assert all(kinds(each) == kinds(members[0]) for each in members)
        for number, member in enumerate(members):
            for op in member.ops:
                if isinstance(op, AllGather):
                    assert member.width(op.x) == op.widths[number]
                    assert member.width(op.out) == sum(op.widths)
                    assert all(width > 0 and width % 16 == 0 for width in op.widths)
                if isinstance(op, Moe) and op.expert_widths:
                    assert sum(op.expert_widths) == op.expert_width
                    assert all(width > 0 and width % 16 == 0 for width in op.expert_widths)
                    assert member.width(op.out) % 16 == 0
                if isinstance(op, Embed | Head) and op.bounds:
                    assert op.bounds[0] == 0
                    assert op.bounds[-1] == whole.vocab_size
                    assert all(start < end for start, end in pairwise(op.bounds))
                    assert all(bound % 16 == 0 for bound in op.bounds[:-1])


def exchanged(op: Op) -> object:
    """What the members agree on."""
    match op:
        case AllGather():
            return op.out, op.widths
        case Embed() | Head():
            return op.weight, op.bounds
        case Moe():
            return op.down, op.expert_widths
        case _:
            raise AssertionError(op)


def kinds(program: Program) -> list[type]:
    return [type(op) for op in program.ops]


@pytest.mark.slow
@settings(max_examples=25)
@given(DIVISIONS)
def test_registers_have_the_widths_that_ops_need(division: Division) -> None:
    shares = division.shares
    for whole in division.programs:
        for member in divided(whole, shares):
            widths = {each.name: each.width for each in member.registers}
            assert len(widths) == len(member.registers)
            shapes = {each.name: each.shape for each in member.weights}
            written = set() if whole.shard.has_embedding else {HIDDEN}
            for op in member.ops:
                read = {getattr(op, each, None) for each in _REGISTERS} - {None, *shapes}
                assert read <= written
                if (out := getattr(op, "out", None)) is not None:
                    written.add(out)
                if isinstance(op, Linear):
                    assert shapes[op.weight] == (widths[op.out], widths[op.x])
                    assert op.bias is None or shapes[op.bias] == (widths[op.out],)
                if isinstance(op, Attention):
                    cache = member.caches[op.cache_index]
                    assert cache.num_kv_heads == op.num_kv_heads
                    assert widths[op.q] == op.num_heads * op.head_dim
                    assert op.k is None or widths[op.k] == op.num_kv_heads * op.head_dim
                    assert op.sinks is None or shapes[op.sinks] == (op.num_heads,)
            assert written <= widths.keys()
            assert widths[HIDDEN] == whole.hidden_size


@settings(max_examples=25)
@given(DIVISIONS)
def test_routers_are_whole(division: Division) -> None:
    shares = division.shares
    for whole in division.programs:
        for member in divided(whole, shares):
            routers = [each for each in member.weights if each.role is WeightRole.ROUTER]
            assert all(each.rows is None for each in routers)


@pytest.mark.slow
@settings(max_examples=20)
@given(DIVISIONS)
def test_members_compute_the_same_bits_together(division: Division) -> None:
    results = []
    for make in (reference_member, group_factory(division.shares)):
        engines = []
        for program in division.programs:
            engine = make(program, NUM_BLOCKS)
            load_canonical_weights(engine, program)
            engines.append(engine)
        results.append(logits_in_steps(engines, division.config.vocab_size, has_state=True))
        for engine in engines:
            engine.close()
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])


@pytest.mark.slow
@given(st.integers(0, 3000), SHARES)
def test_no_unit_is_better_elsewhere(more: int, shares: tuple[int, ...]) -> None:
    num_units = len(shares) + more
    bounds = unit_bounds(num_units, shares)
    counts = [end - start for start, end in pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == num_units
    assert min(counts) >= 1
    slowest = max(
        (count / share for count, share in zip(counts, shares, strict=True) if count > 1),
        default=0.0,
    )
    for count, share in zip(counts, shares, strict=True):
        assert (count + 1) / share >= slowest * (1 - 1e-12)


@given(st.integers(1, 300_000), SHARES)
def test_the_vocabulary_is_covered(vocab_size: int, shares: tuple[int, ...]) -> None:
    bounds = vocabulary_bounds(vocab_size, shares)
    if vocab_size > 16 * (len(shares) - 1):
        assert len(bounds) == len(shares) + 1
    if not bounds:
        return
    assert bounds[0] == 0
    assert bounds[-1] == vocab_size
    assert all(start < end for start, end in pairwise(bounds))
    assert all(bound % 16 == 0 for bound in bounds[:-1])
