"""The known program: that its logits are the reference's, and that no wrong op passes for right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.reference.engine import ReferenceEngine

from potluck.engines import self_test
from potluck.probe.cases import program_case as case
from potluck.types.engine import NO_EXPERTS
from potluck.types.program import (
    Add,
    Attention,
    GatedActivation,
    Linear,
    Op,
    Program,
    Rope,
)
from potluck.types.tensor import TensorFormat

Change = Callable[[Op], Op | None]


class Reference(ReferenceEngine):
    """With what an engine that is loaded has besides."""

    weights_bytes = 0
    expert_use = NO_EXPERTS

    def warm_up(self) -> None:
        pass


def logits(change: Change | None = None, *, only: int | None = None) -> list[list[float]]:
    """Of the reference, where ``change`` was made to every op, or to the one of that number."""

    def make_engine(
        program: Program, *, num_blocks: int, max_step_tokens: int, num_states: int = 0
    ) -> Reference:
        ops = [
            op if change is None or only not in (None, number) else change(op)
            for number, op in enumerate(program.ops)
        ]
        changed = replace(program, ops=tuple(op for op in ops if op is not None))
        return Reference(changed, num_blocks=num_blocks, num_states=num_states)

    return self_test.program_logits(make_engine)


def test_the_logits_are_those_of_the_reference() -> None:
    kept = case.expected_logits()
    for row, right in zip(logits(), kept, strict=True):
        assert row == pytest.approx(right, rel=1e-4, abs=1e-4)
    assert case.deviation(logits()) == ""
    assert len({tuple(row) for row in kept}) == 5


def test_all_formats_of_weights_occur() -> None:
    weights = self_test.two_layers().weights
    formats = {case.weight_format(spec.name, spec.shape) for spec in weights}
    assert formats == {TensorFormat.F32, TensorFormat.F16, TensorFormat.Q8_0, TensorFormat.Q4_0}


def no_scale(op: Op) -> Op:
    return replace(op, scale=1.0) if isinstance(op, Attention) else op


def short_window(op: Op) -> Op:
    return replace(op, window=16) if isinstance(op, Attention) else op


def one_cache(op: Op) -> Op:
    return replace(op, cache_index=0) if isinstance(op, Attention) else op


def keys_for_values(op: Op) -> Op:
    return replace(op, v="k") if isinstance(op, Attention) else op


def no_rope(op: Op) -> Op | None:
    return None if isinstance(op, Rope) else op


def no_rope_of_keys(op: Op) -> Op | None:
    return None if isinstance(op, Rope) and op.x == "k" else op


def no_residual(op: Op) -> Op | None:
    return None if isinstance(op, Add) else op


def gate_for_up(op: Op) -> Op:
    if not isinstance(op, GatedActivation):
        return op
    assert op.gate is not None
    return replace(op, gate=op.up, up=op.gate)


def output_for_query(op: Op) -> Op:
    if not isinstance(op, Linear) or ".q." not in op.weight:
        return op
    return replace(op, weight=op.weight.replace(".q.", ".o."))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        no_scale,
        short_window,
        one_cache,
        keys_for_values,
        no_rope,
        no_rope_of_keys,
        no_residual,
        gate_for_up,
        output_for_query,
    ],
)
def test_a_wrong_op_is_noticed_wherever_it_is(change: Change) -> None:
    ops = self_test.two_layers().ops
    places = [number for number, op in enumerate(ops) if change(op) != op]
    assert places
    for place in places:
        assert case.deviation(logits(change, only=place)).startswith("row "), (place, ops[place])


def test_weights_read_in_the_wrong_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the halves of Q4_0's bytes are exchanged, in one matrix alone."""
    stored = case.stored_weight

    def exchanged(name: str, shape: tuple[int, ...]) -> bytes:
        data = stored(name, shape)
        if name != "layers.1.mlp.down.weight":
            return data
        block = TensorFormat.Q4_0.block_bytes
        return b"".join(
            data[i : i + 2] + bytes(b >> 4 | (b & 15) << 4 for b in data[i + 2 : i + block])
            for i in range(0, len(data), block)
        )

    monkeypatch.setattr(case, "stored_weight", exchanged)
    assert case.deviation(logits()).startswith("row 0 of the program's output is off by ")
