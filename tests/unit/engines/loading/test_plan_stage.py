"""What a stage is counted with: the cost of its backend, on whichever memory."""

from __future__ import annotations

import dataclasses

import pytest
from support.engines import reference_backend

from potluck.catalog import describe_model, read_profile
from potluck.engines.loading import plan_stage
from potluck.errors import EngineError, ParameterError, UnsupportedModelError
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import ALL_FEATURES, BackendAbilities
from potluck.types.choices import Quantization
from potluck.types.engine import EngineCost
from potluck.types.program import Program, Shard
from potluck.types.stage import StagePlan, StageSize
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.types.unit import NATIVE

SIZE = StageSize(
    context_tokens=64, num_blocks=4, max_step_tokens=8, num_threads=1, backend="by hand"
)
DEMO = describe_model("demo")


class ManualDescription:
    """A cost with which every part of a plan can be told from the others."""

    process_bytes = 7
    abilities = BackendAbilities(features=ALL_FEATURES, formats=frozenset(TensorFormat))

    def loaded_bytes(self, info: TensorInfo) -> int:
        return 1000

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        return 10 * num_blocks + 3 * num_states

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        return 100 * max_step_tokens

    def staging_bytes(self, loaded: TensorInfo) -> int:
        return 10**9 if len(loaded.shape) == 1 else 5


def planned(size: StageSize, cost: EngineCost | None, process_bytes: int = 0) -> StagePlan:
    whole = Shard.whole(DEMO.config.num_layers)
    return plan_stage(read_profile(DEMO), whole, size, process_bytes=process_bytes, cost=cost)


def test_every_part_is_what_the_cost_says() -> None:
    native = planned(dataclasses.replace(SIZE, backend=NATIVE), None).memory
    memory = planned(SIZE, ManualDescription(), process_bytes=50).memory
    assert memory.weights_bytes % 1000 == 0
    assert memory.cache_bytes == 40
    assert memory.state_bytes == 0
    assert memory.scratch_bytes == 800
    # The loader's own buffers, and the most that the sink holds of any one weight.
    assert memory.staging_bytes == native.staging_bytes + 10**9
    assert memory.process_bytes == 57
    assert memory.rope_bytes == native.rope_bytes
    assert not memory.is_on_device


def test_states_are_a_part_of_their_own() -> None:
    memory = planned(SIZE, ManualDescription()).memory
    with_states = planned(dataclasses.replace(SIZE, num_states=9), ManualDescription()).memory
    assert with_states == dataclasses.replace(memory, state_bytes=27)
    assert with_states.total_bytes == memory.total_bytes + 27
    assert "states 27 B" in with_states.described()


def test_on_a_device_the_sum_is_split_and_no_part_changes() -> None:
    here = planned(SIZE, ManualDescription()).memory
    there = planned(dataclasses.replace(SIZE, is_on_device=True), ManualDescription()).memory
    assert there == dataclasses.replace(here, is_on_device=True)
    assert there.host_bytes == there.staging_bytes + 7
    assert there.device_bytes + there.host_bytes == here.total_bytes == here.host_bytes


def test_only_native_weights_are_mapped() -> None:
    mapped = dataclasses.replace(SIZE, is_mapped=True)
    with pytest.raises(
        ParameterError, match="the backend by hand does not support memory-mapped weights"
    ) as caught:
        planned(mapped, ManualDescription())
    assert "--mmap" in caught.value.hint
    assert planned(dataclasses.replace(mapped, backend=NATIVE), None).memory.mapped_bytes > 0


def test_a_backend_that_is_not_known_needs_its_cost_given() -> None:
    size = dataclasses.replace(SIZE, backend="reference")
    with pytest.raises(EngineError, match="does not support the backend reference"):
        planned(size, None)
    assert planned(size, reference_backend.COST).memory.weights_bytes > 0


def test_formats_of_products_are_those_of_matrices_that_are_multiplied() -> None:
    """Norms of ``demo`` stay in BF16 when it is quantized, and its embedding is its head, which
    the mixture ``q4_0`` keeps in Q6_K.
    """
    description = describe_model("demo")
    num_layers = description.config.num_layers
    size = StageSize(context_tokens=64, num_blocks=4, max_step_tokens=64, num_threads=1)
    profile = read_profile(description)
    for quantization, formats in (
        (Quantization.NONE, {"bf16"}),
        (Quantization.Q4_0, {"q4_0", "q6_k"}),
    ):
        plan = plan_stage(
            profile,
            Shard.whole(num_layers),
            dataclasses.replace(size, quantization=quantization),
        )
        assert plan.product_formats == formats


class WithoutBf16(ManualDescription):
    abilities = BackendAbilities(features=ALL_FEATURES, formats=frozenset({TensorFormat.Q8_0}))


def test_a_format_that_the_backend_lacks_is_named() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        planned(SIZE, WithoutBf16())
    stored = read_profile(DEMO).layer_bytes[0][0][0]
    assert caught.value.missing == (stored,)
    assert caught.value.message == (f"the backend by hand does not support weights in {stored}")
    # What counts is the format of a matrix when it is loaded; vectors have any.
    planned(dataclasses.replace(SIZE, quantization=Quantization.Q8_0), WithoutBf16())
