"""The bindings refuse what a kernel could not survive, and name the instruction sets there are."""

from __future__ import annotations

import numpy as np
import pytest
from support.kernels import cpp_checks

from potluck.kernels import (
    available_isas,
    format_info,
    kernels_for,
    pack_rows,
    panel_bytes,
)
from potluck.types.tensor import COMPUTED_FORMATS


def zeros(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


def test_formats_agree_with_the_types() -> None:
    for format in COMPUTED_FORMATS:
        assert format_info(format.label) == (format.block_elements, format.block_bytes)
    with pytest.raises(ValueError, match="no such format: q9_k"):
        format_info("q9_k")


def test_unknown_isa_is_an_error_that_names_the_others() -> None:
    assert available_isas()[0] == "scalar"
    for isa in available_isas():
        assert kernels_for(isa).isa == isa
    with pytest.raises(ValueError, match="available: scalar"):
        kernels_for("sse9")


def test_a_native_build_has_all_that_runs_here() -> None:
    """A compiler may lack the last ones."""
    names = available_isas()[1:]
    assert cpp_checks.run("print_isas").split()[: len(names)] == names


def test_pack_rows_refuses_wrong_sizes() -> None:
    rows, panels = np.zeros(2 * 34, np.uint8), np.zeros(panel_bytes("q8_0", 32), np.uint8)
    pack_rows("q8_0", 32, rows, 14, 2, panels)
    with pytest.raises(ValueError, match="panels is too small"):
        pack_rows("q8_0", 32, rows, 15, 2, panels)
    with pytest.raises(ValueError, match="num_rows"):
        pack_rows("q8_0", 32, rows, 0, 3, panels)
    with pytest.raises(ValueError, match="whole blocks"):
        pack_rows("q8_0", 33, rows, 0, 2, panels)
    with pytest.raises(ValueError, match="negative"):
        pack_rows("q8_0", 32, rows, -1, 2, panels)


def test_linear_refuses_what_does_not_fit() -> None:
    kernels = kernels_for("scalar")
    panels = np.zeros(panel_bytes("f32", 8), np.uint8)
    kernels.linear_float("f32", panels, zeros(2, 8), None, zeros(2, 16), 0, 1)
    with pytest.raises(ValueError, match="no such panels"):
        kernels.linear_float("f32", panels, zeros(2, 8), None, zeros(2, 16), 0, 2)
    with pytest.raises(ValueError, match="panels has not the size"):
        kernels.linear_float("f32", panels, zeros(2, 8), None, zeros(2, 17), 0, 1)
    with pytest.raises(ValueError, match="bias"):
        kernels.linear_float("f32", panels, zeros(2, 8), zeros(15), zeros(2, 16), 0, 1)
    with pytest.raises(ValueError, match="out must be"):
        kernels.linear_float("f32", panels, zeros(2, 8), None, zeros(3, 16), 0, 1)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.linear_float("f32", panels, zeros(2, 8), None, zeros(2, 32)[:, ::2], 0, 1)
    q, scales, sums = np.zeros((1, 32), np.int8), zeros(1, 1), np.zeros((1, 1), np.int32)
    wide = np.zeros(panel_bytes("f32", 32), np.uint8)
    with pytest.raises(ValueError, match="float activations"):
        kernels.linear_quantized("f32", wide, q, scales, sums, None, zeros(1, 16), 0, 1)


def test_arrays_are_not_converted() -> None:
    kernels = kernels_for("scalar")
    with pytest.raises(TypeError):
        kernels.add(np.zeros(4, np.float64), zeros(4))
    with pytest.raises(TypeError):
        kernels.add(zeros(8)[::2], zeros(4))
    readonly = zeros(4)
    readonly.flags.writeable = False
    with pytest.raises(TypeError):
        kernels.add(readonly, zeros(4))
    with pytest.raises(ValueError, match="as long as"):
        kernels.add(zeros(4), zeros(5))


def test_attention_refuses_what_is_not_there() -> None:
    kernels = kernels_for("scalar")
    q, out = zeros(2, 2, 8), zeros(2, 2, 8)
    keys, values = np.zeros((2, 1, 8, 16), np.uint16), np.zeros((2, 1, 16, 16), np.uint16)
    table = np.array([1], np.int32)
    for attention in (kernels.attention, kernels.attention_in_parts):
        attention(q, keys, values, table, 14, None, 1.0, out)
        with pytest.raises(ValueError, match="block table"):
            attention(q, keys, values, table, 15, None, 1.0, out)
        with pytest.raises(ValueError, match="no such block"):
            attention(q, keys, values, table + 1, 14, None, 1.0, out)
        with pytest.raises(ValueError, match="no such position"):
            attention(q, keys, values, table, -1, None, 1.0, out)
        with pytest.raises(ValueError, match="a window"):
            attention(q, keys, values, table, 14, 0, 1.0, out)
        with pytest.raises(ValueError, match="a token"):
            attention(zeros(0, 2, 8), keys, values, table, 14, None, 1.0, zeros(0, 2, 8))
        with pytest.raises(ValueError, match="heads of q"):
            attention(q, keys, values, table, 14, None, 1.0, zeros(2, 1, 8))
        with pytest.raises(ValueError, match="padded value_dim"):
            attention(q, keys, values, table, 14, None, 1.0, zeros(2, 2, 17))
        attention(q, keys, None, table, 14, None, 1.0, zeros(2, 2, 6), value_start=2)
        for start in (-1, 3):
            with pytest.raises(ValueError, match="columns of the values"):
                attention(q, keys, None, table, 14, None, 1.0, zeros(2, 2, 6), value_start=start)


def test_convolutions_refuse_what_does_not_fit() -> None:
    conv = kernels_for("scalar").causal_conv
    x, weight, state = zeros(2, 20), zeros(20, 3), zeros(2, 20)
    conv(x, weight, None, state, False, False, x, 16, 20)
    with pytest.raises(ValueError, match="a token"):
        conv(zeros(0, 20), weight, None, state, False, False, zeros(0, 20), 0, 20)
    with pytest.raises(ValueError, match="kernel"):
        conv(x, zeros(20, 1), None, zeros(0, 20), False, False, x, 0, 20)
    with pytest.raises(ValueError, match="kernel"):
        conv(x, zeros(20, 17), None, zeros(16, 20), False, False, x, 0, 20)
    with pytest.raises(ValueError, match="weight must be"):
        conv(x, zeros(21, 3), None, state, False, False, x, 0, 20)
    with pytest.raises(ValueError, match="state must be"):
        conv(x, weight, None, zeros(3, 20), False, False, x, 0, 20)
    with pytest.raises(ValueError, match="bias must be"):
        conv(x, weight, zeros(19), state, False, False, x, 0, 20)
    for first, end in ((-16, 20), (8, 20), (0, 19), (0, 32), (16, 16)):
        with pytest.raises(ValueError, match="no such columns"):
            conv(x, weight, None, state, False, False, x, first, end)


def test_the_delta_rule_refuses_what_does_not_fit() -> None:
    kernels = kernels_for("scalar")
    one, two, keys = zeros(1), zeros(2), zeros(1, 2, 4)
    kernels.delta_inputs(zeros(8), two, two, two, two, 1e-6, keys, one, zeros(2), zeros(2))
    with pytest.raises(ValueError, match="queries and keys"):
        kernels.delta_inputs(zeros(7), two, two, two, two, 1e-6, keys, one, zeros(2), zeros(2))
    with pytest.raises(ValueError, match="one factor"):
        kernels.delta_inputs(zeros(8), two, one, two, two, 1e-6, keys, one, zeros(2), zeros(2))
    with pytest.raises(ValueError, match="one product"):
        kernels.delta_inputs(zeros(8), two, two, two, two, 1e-6, keys, two, zeros(2), zeros(2))
    wide, values, out = zeros(1, 3, 2, 4), zeros(3, 2, 20), zeros(3, 2, 20)
    products, factors, state = zeros(3, 1), zeros(3, 2), zeros(2, 2, 4, 16)
    kernels.gated_delta(wide, products, factors, factors, values, state, False, True, out, 0, 4)
    with pytest.raises(ValueError, match="no such strips"):
        kernels.gated_delta(wide, products, factors, factors, values, state, False, True, out, 0, 5)
    three, of_three, of_two = zeros(3, 3, 20), zeros(3, 3, 20), zeros(3, 2)
    with pytest.raises(ValueError, match="multiple of key heads"):
        kernels.gated_delta(
            zeros(2, 3, 2, 4), of_two, of_two, of_two, three, state, False, True, of_three, 0, 4
        )
    small = zeros(2, 1, 4, 16)
    with pytest.raises(ValueError, match="state must be"):
        kernels.gated_delta(wide, products, factors, factors, values, small, False, True, out, 0, 2)


def test_the_scan_refuses_what_does_not_fit() -> None:
    kernels = kernels_for("scalar")
    two = zeros(2)
    kernels.scan_inputs(two, two, two, 0.0, 1.0, zeros(2), zeros(2))
    with pytest.raises(ValueError, match="one factor"):
        kernels.scan_inputs(two, zeros(1), two, 0.0, 1.0, zeros(2), zeros(2))
    x, factors, state, out = zeros(3, 48), zeros(3, 2), zeros(2, 2, 4, 16), zeros(3, 2, 20)
    kernels.state_scan(x, factors, factors, two, 1, state, True, out, 0, 4)
    with pytest.raises(ValueError, match="x must be"):
        kernels.state_scan(zeros(3, 47), factors, factors, two, 1, state, True, out, 0, 4)
    with pytest.raises(ValueError, match="multiple of groups"):
        kernels.state_scan(x, factors, factors, two, 3, state, True, out, 0, 4)
    with pytest.raises(ValueError, match="no such strips"):
        kernels.state_scan(x, factors, factors, two, 1, state, True, out, 3, 2)
