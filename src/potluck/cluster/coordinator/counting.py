"""A model as placement has it counted: by its profile, and by what engines take."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from potluck.cluster.worker.plan import plan_worker
from potluck.engines.costs import CostOf, check_backend
from potluck.loading import matrix_formats, program_to_count
from potluck.placement.counting import Counting
from potluck.placement.work import ModelWork, model_work
from potluck.types.profile import ModelProfile
from potluck.types.program import Program, Shard
from potluck.types.quantization import Quantization
from potluck.types.stage import StagePlan, StageSize
from potluck.types.tensor import TensorFormat


def counting_of(profile: ModelProfile, cost_of: CostOf) -> Counting:
    """Return how workers will count the model. ``cost_of`` knows what engines take.

    What was counted is remembered, for every plan that is made with it.
    """

    @cache
    def count(shard: Shard, size: StageSize) -> StagePlan:
        return plan_worker(profile, shard, size, cost=cost_of(size.backend))

    @cache
    def whole_program() -> Program:
        whole = Shard.whole(profile.config.num_layers)
        return program_to_count(profile.config, whole, context_tokens=1)

    @cache
    def formats(quantization: Quantization) -> frozenset[TensorFormat]:
        specs = {spec.name: spec for spec in whole_program().weights}
        stored = [(specs[name], info) for name, info in profile.tensors.items() if name in specs]
        targets = (
            replace(info, format=quantization.target(spec, info, profile.config.num_layers))
            for spec, info in stored
        )
        return matrix_formats(targets)

    def check(backend: str, quantization: Quantization) -> None:
        check_backend(backend, cost_of(backend), whole_program(), formats(quantization))

    @cache
    def work(quantization: Quantization, backend: str) -> ModelWork:
        return model_work(profile, quantization, cost_of(backend).loaded_bytes)

    return Counting(
        num_layers=profile.config.num_layers,
        can_cut_before=lambda layer: profile.config.can_cut_before(layer),
        stage=count,
        work=lambda size: work(size.quantization, size.backend),
        check_backend=check,
        abilities=lambda backend: cost_of(backend).abilities,
    )
