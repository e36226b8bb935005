"""Profiles, units and candidates for tests of placement, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.models.configs import make_config

from potluck.models.program import weight_specs
from potluck.placement.candidates import Candidate
from potluck.placement.speed import unit_speed
from potluck.placement.times import UnitTimes
from potluck.placement.work import ModelWork, model_work
from potluck.types.choices import Quantization
from potluck.types.cluster import NodeId, UnitId
from potluck.types.hardware import Figure, Figures, Origin, Rates
from potluck.types.model import ExpertsConfig, ModelConfig
from potluck.types.placement import ModelCost
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.tensor import TensorFormat, TensorInfo


def llama_config(
    num_layers: int = 4,
    *,
    hidden_size: int = 1024,
    intermediate_size: int = 2048,
    num_heads: int = 16,
    num_kv_heads: int = 4,
    head_dim: int = 64,
    vocab_size: int = 8192,
    tied_head: bool = False,
    window: int | None = None,
    experts: ExpertsConfig | None = None,
    expert_layers: tuple[int, ...] | None = None,
) -> ModelConfig:
    """Return the configuration of a Llama-like model."""
    return make_config(
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_context_tokens=8192,
        tied_head=tied_head,
        sliding_windows=(window,) * num_layers,
        experts=experts,
        expert_layers=expert_layers,
    )


def profile_of(config: ModelConfig, stored: TensorFormat = TensorFormat.BF16) -> ModelProfile:
    """Return the profile of a model whose matrices are all ``stored`` in one format."""
    specs = weight_specs(config, Shard.whole(config.num_layers))
    tensors = {
        spec.name: TensorInfo(
            name=spec.name,
            shape=spec.shape,
            format=TensorFormat.F32 if len(spec.shape) == 1 else stored,
        )
        for spec in specs
    }
    return ModelProfile(
        config=config,
        path="a model",
        tensors=tensors,
        file_names={name: name for name in tensors},
        unusable={},
        layer_bytes=((),) * config.num_layers,
        embedding_bytes=(),
        head_bytes=(),
    )


def work_of(
    config: ModelConfig | None = None, quantization: Quantization = Quantization.Q8_0
) -> ModelWork:
    """Return the work of a model that is stored in BF16."""
    profile = profile_of(config or llama_config())
    return model_work(profile, quantization, lambda info: info.num_bytes)


def measured(value: float) -> Figure:
    """Return a figure as a trial gives it."""
    return Figure(value=value, origin=Origin.MEASURED, source="a trial")


def rates(decode: float, prefill: float) -> Rates:
    """Return the rates of a trial, in tokens per second."""
    return Rates(
        decode_tokens_per_second=measured(decode), prefill_tokens_per_second=measured(prefill)
    )


def candidate(
    name: str,
    work: ModelWork,
    *,
    decode: float = 200.0,
    prefill: float = 1000.0,
    usable_bytes: int = 1 << 40,
    usable_share: float = 1.0,
    quota_period_seconds: float | None = None,
) -> Candidate:
    """Return a unit of which every layer takes as many bytes as its weights."""
    layers = tuple(sum(each.num_bytes for each in part.products) for part in work.layers)
    head = sum(each.num_bytes for each in work.head.products)
    speed = unit_speed(
        rates(decode, prefill),
        Figures(),
        is_shared=True,
        usable_share=usable_share,
        quota_period_seconds=quota_period_seconds,
    )
    return Candidate(
        node_id=NodeId(name),
        unit_id=UnitId("cpu/native"),
        usable_bytes=usable_bytes,
        cost=ModelCost(
            layer_bytes=layers,
            embedding_bytes=head,
            head_bytes=head,
            shared_bytes=0,
            scratch_bytes=1 << 20,
            process_bytes=1 << 20,
            lone_embedding_bytes=head + (1 << 20),
            lone_head_bytes=head + (1 << 20),
        ),
        times=UnitTimes(work=work, speed=speed),
    )


def unit_times(name: str, work: ModelWork, **options: Any) -> UnitTimes:
    """Return the times of a ``candidate``."""
    times = candidate(name, work, **options).times
    assert isinstance(times, UnitTimes)
    return times


def with_times(each: Candidate, times: UnitTimes) -> Candidate:
    """Return the same unit with other times."""
    return replace(each, times=times)
