"""How placement counts a model: from its profile and the memory cost of engines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from potluck.engines.backends import CostOf, check_backend
from potluck.engines.loading import matrix_formats
from potluck.engines.loading.plan import plan_worker
from potluck.engines.native.products import EXCHANGED_BYTES, operands_of
from potluck.models.program import program_to_count
from potluck.placement.costs import Counting
from potluck.placement.divided_work import DividedWork, divided_work
from potluck.placement.work import ModelWork, model_work
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.profile import ModelProfile
from potluck.types.program import Program, Shard
from potluck.types.quantization import target_format
from potluck.types.stage import StagePlan, StageSize
from potluck.types.tensor import TensorFormat


def counting_of(profile: ModelProfile, cost_of: CostOf) -> Counting:
    """Return how workers will count the model. ``cost_of`` returns the memory cost of engines.

    Counts are cached for all plans made with the result.
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
            replace(info, format=target_format(quantization, spec, info, profile.config.num_layers))
            for spec, info in stored
        )
        return matrix_formats(targets)

    def check(backend: str, quantization: Quantization) -> None:
        check_backend(backend, cost_of(backend), whole_program(), formats(quantization))

    @cache
    def work(quantization: Quantization, backend: str) -> ModelWork:
        return model_work(profile, quantization, cost_of(backend).loaded_bytes)

    @cache
    def divided(
        quantization: Quantization, backend: str, arithmetic: Arithmetic, shares: tuple[int, ...]
    ) -> DividedWork:
        return divided_work(
            profile,
            cost_of(backend).loaded_bytes,
            work(quantization, backend),
            shares,
            lambda format: EXCHANGED_BYTES[
                operands_of(format, is_fast=arithmetic is not Arithmetic.EXACT)
            ],
        )

    return Counting(
        num_layers=profile.config.num_layers,
        no_cuts=profile.config.no_cuts,
        stage=count,
        work=lambda size: work(size.quantization, size.backend),
        check_backend=check,
        abilities=lambda backend: cost_of(backend).abilities,
        divided=lambda size, shares: divided(
            size.quantization, size.backend, size.arithmetic, shares
        ),
    )
