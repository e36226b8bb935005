"""Which modules compute for which backend, and what they say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest
from support.engines import reference_backend
from support.engines.native_pipeline import small_config
from support.models.recurrent_configs import (
    GATED_DELTA,
    SHORT_CONV,
    hybrid_config,
    latent_config,
    parallel_config,
)

from potluck.engines.backends import (
    BACKENDS,
    check_backend,
    cost_of,
    native_unit,
    open_engine,
    unit_address,
)
from potluck.engines.native import engine as native
from potluck.engines.native.program import core_program
from potluck.engines.tinygrad.backend import _enter
from potluck.errors import EngineError, UnsupportedModelError
from potluck.kernels import runner
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.arithmetic import Arithmetic
from potluck.types.hardware import Trial
from potluck.types.model import ModelConfig
from potluck.types.program import Moe, Program, Shard
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.types.unit import Interface, UnitAddress


def a_program() -> Program:
    config = small_config(2)
    rope = rope_tables(config, 64)
    return build_program(config, Shard.whole(2), context_tokens=64, ropes=rope)


@pytest.mark.slow
def test_costs_need_neither_tinygrad_nor_the_compiled_core() -> None:
    """A coordinator counts for units of others: what they run on need not be there."""
    script = """
import sys
sys.modules["tinygrad"] = None
sys.modules["potluck.kernels"] = None
from potluck.engines.backends import BACKENDS
from potluck.engines.backends import cost_of
for spec in BACKENDS[1:]:
    assert cost_of(spec.name).process_bytes > 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)


def test_the_native_engine_takes_what_its_cost_says() -> None:
    cost, program = cost_of("native"), a_program()
    matrix = TensorInfo(name="w", shape=(40, 64), format=TensorFormat.BF16)
    assert cost.loaded_bytes(matrix) == native.loaded_bytes(matrix) == 48 * 64 * 2
    in_core = core_program(program)
    assert cost.cache_bytes(program, 5) == runner.Stage.cache_bytes(
        program=in_core, num_blocks=5, num_states=0
    )
    for arithmetic in Arithmetic:
        assert cost.scratch_bytes(
            program, 32, num_threads=2, arithmetic=arithmetic
        ) == runner.Stage.scratch_bytes(
            program=in_core,
            max_step_tokens=32,
            num_threads=2,
            is_fast=arithmetic is not Arithmetic.EXACT,
        )
    assert (cost.process_bytes, cost.staging_bytes(matrix)) == (0, 0)


def test_experts_are_computed_by_the_native_engine_alone() -> None:
    program = a_program()
    check_backend("native", cost_of("native"), program)
    for spec in BACKENDS[1:]:
        with pytest.raises(UnsupportedModelError) as caught:
            check_backend(spec.name, cost_of(spec.name), program)
        assert caught.value.message == (f"the backend {spec.name} does not support Moe")
        assert caught.value.missing == ("Moe",)
    dense = replace(program, ops=tuple(op for op in program.ops if not isinstance(op, Moe)))
    for spec in BACKENDS:
        check_backend(spec.name, cost_of(spec.name), dense)


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (
            hybrid_config(SHORT_CONV),
            {"CopyColumns", "CausalConv", "GatedActivation with activation product"},
        ),
        (hybrid_config(GATED_DELTA), {"CopyColumns", "CausalConv", "GatedDelta"}),
        (parallel_config(), {"CausalConv", "StateScan"}),
        (
            latent_config(),
            {
                "HeadLinear",
                "CopyColumns",
                "Attention with value_dim",
                "Attention with value_start",
            },
        ),
    ],
    ids=["short convolution", "gated delta", "mamba", "latent"],
)
def test_tinygrad_names_what_it_does_not_compute(config: ModelConfig, missing: set[str]) -> None:
    whole = Shard.whole(config.num_layers)
    program = build_program(config, whole, context_tokens=64, ropes=rope_tables(config, 64))
    for spec in BACKENDS[1:]:
        with pytest.raises(UnsupportedModelError, match=f"{spec.name} does not support") as caught:
            check_backend(spec.name, cost_of(spec.name), program)
        assert set(caught.value.missing) == missing


def test_a_backend_of_another_version_is_named() -> None:
    with pytest.raises(
        EngineError, match="this node does not support the backend tinygrad:METAL"
    ) as caught:
        cost_of("tinygrad:METAL")
    assert caught.value.hint == "install the same version of Potluck on every node"
    with pytest.raises(EngineError):
        cost_of("reference")
    assert cost_of("reference", [reference_backend.SPEC]) is reference_backend.COST


def test_a_unit_is_reached_as_its_trial_was_and_with_the_fastest_variant() -> None:
    there = Interface(api="opencl", address="some.icd#0:0")
    trial = Trial(
        device_id="pci-1",
        backend="tinygrad:CL",
        works=True,
        variants=("slow", "fast"),
        interface=there,
    )
    assert unit_address(trial) == UnitAddress(
        unit_id="pci-1/tinygrad:CL",
        backend="tinygrad:CL",
        engine="potluck.engines.tinygrad.backend",
        interface=there,
        variant="fast",
    )


@pytest.mark.parametrize("variant", ["", "scalar"])
def test_an_engine_is_opened_by_the_module_of_its_backend(variant: str) -> None:
    program = a_program()
    opened = open_engine(
        native_unit(variant or None), program, num_blocks=4, max_step_tokens=8, num_threads=1
    )
    assert isinstance(opened, native.NativeEngine)
    opened.warm_up()
    assert opened.weights_bytes == 0
    opened.close()
    address = UnitAddress(
        unit_id="cpu/reference", backend="reference", engine=reference_backend.SPEC.engine
    )
    other = open_engine(address, program, num_blocks=4, max_step_tokens=8, num_threads=1)
    assert not isinstance(other, native.NativeEngine)
    other.close()


def test_every_backend_of_the_table_can_be_opened_by_its_module() -> None:
    for spec in BACKENDS:
        assert spec.engine, spec.name


def test_a_process_uses_one_device_through_tinygrad() -> None:
    one, other = {"DEV": "CL", "PARALLEL": "0"}, {"DEV": "CPU", "PARALLEL": "0"}
    with patch.dict(os.environ):
        _enter(one, is_imported=False)
        assert os.environ["DEV"] == "CL"
        _enter(one, is_imported=True)
        with pytest.raises(EngineError, match="already uses tinygrad on CL"):
            _enter(other, is_imported=True)
        assert os.environ["DEV"] == "CL"
        _enter(other, is_imported=False)
        _enter(other, is_imported=True)
