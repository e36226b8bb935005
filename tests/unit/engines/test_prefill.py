"""Where prefill is fast, and what of a step."""

from __future__ import annotations

import logging
import subprocess
import sys
from unittest.mock import patch

import pytest
from support.kernel_build import build

from potluck import kernels
from potluck.engines import native
from potluck.engines.backends import native_unit
from potluck.engines.prefill import prefill_of_weights, prefill_on
from potluck.types.prefill import Prefill
from potluck.types.unit import UnitAddress

GPU = UnitAddress(unit_id="x/tinygrad:CL", backend="tinygrad:CL", engine="somewhere")


def test_what_no_kernel_computes_faster_is_exact_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert kernels.fast_formats("scalar") == []
    with caplog.at_level(logging.WARNING):
        assert prefill_on(native_unit("scalar"), Prefill.FAST) is Prefill.EXACT
        assert prefill_on(GPU, Prefill.FAST) is Prefill.EXACT
    assert caplog.messages == [
        "prefill is exact: the instruction set scalar has no fast one",
        "prefill is exact: tinygrad:CL has no fast one",
    ]
    caplog.clear()
    assert prefill_on(native_unit("scalar"), Prefill.EXACT) is Prefill.EXACT
    assert not caplog.messages


def test_an_instruction_set_with_fast_kernels_uses_them() -> None:
    with patch.object(kernels, "fast_formats", lambda isa: ["q8_0"]):
        assert prefill_on(native_unit("scalar"), Prefill.FAST) is Prefill.FAST


def test_weights_without_fast_kernels_are_computed_exactly_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unit = native_unit("scalar")
    with (
        patch.object(kernels, "fast_formats", lambda isa: ["q8_0"]),
        caplog.at_level(logging.WARNING),
    ):
        assert prefill_of_weights(unit, Prefill.FAST, {"f32", "q8_0"}) is Prefill.FAST
        assert prefill_of_weights(unit, Prefill.EXACT, {"f32"}) is Prefill.EXACT
        assert not caplog.messages
        assert prefill_of_weights(unit, Prefill.FAST, {"f32", "bf16"}) is Prefill.EXACT
    assert caplog.messages == ["prefill is exact: weights in bf16, f32 have no fast one"]


def test_rows_of_prompts_alone_are_fast() -> None:
    """Of ragged steps, by a program with kernels that mark what they computed."""
    folder = build("dev", "fast_prefill_check", f"-DPython_EXECUTABLE={sys.executable}")
    done = subprocess.run(
        [folder / "fast_prefill_check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_fast_prefill_takes_room_for_activations_in_bf16() -> None:
    from support.native_pipeline import small_config

    from potluck.models.program import build_program
    from potluck.models.rope import rope_table
    from potluck.types.program import Shard

    config = small_config(1)
    program = build_program(config, Shard.whole(1), context_tokens=64, rope=rope_table(config, 64))
    exact, fast = (
        native.scratch_bytes(program, 48, num_threads=1, prefill=each)
        for each in (Prefill.EXACT, Prefill.FAST)
    )
    widest = max(register.width for register in program.registers)
    assert 48 * widest <= fast - exact <= 48 * widest * 2
