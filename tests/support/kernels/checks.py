"""What is demanded of every kernel, as functions that raise ``AssertionError``.

The scalar kernels are compared with NumPy in float64, to a tolerance derived from the norms of what
is summed and the rounding errors of each operation; where an operation is exact or rounds once, bit
for bit. The other instruction sets are compared with the scalar kernels bit for bit, in every
format; but for the fast products, which have an order of their own and are compared with NumPy. The
shapes are ragged on purpose; inputs are misaligned and surrounded by NaN, outputs guarded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from support.kernels.attention_case import AttentionCase
from support.kernels.convert_checks import TARGET_FORMATS, check_encode, check_widen
from support.kernels.inputs import (
    F32,
    F64,
    FLOAT_FORMATS,
    FORMATS,
    U,
    guarded,
    guarded_output,
    make_weights,
    same_bits,
)
from support.kernels.linear_case import LinearCase, run_quantize, run_round_bf16
from support.kernels.sampling_checks import (
    check_copy_allowed,
    check_draw_weights,
    check_kept_sums,
    check_split_logits,
)
from support.kernels.state_checks import (
    check_causal_conv,
    check_delta_inputs,
    check_gated_delta,
    check_scan_inputs,
    check_state_scan,
)

from potluck.kernels import Kernels
from potluck.types.arithmetic import arithmetics_with
from potluck.types.tensor import TensorFormat

ROWS = (1, 3, 15, 16, 17, 33)
TOKENS = (1, 2, 3, 7, 8, 9, 17)
FAST_TOKENS = (1, 16, 33)
FLOAT_COLUMNS = (1, 7, 8, 24, 31, 33, 257)
LENGTHS = (1, 3, 7, 15, 16, 17, 31, 32, 33, 250)


def assert_close(actual: F32, expected: F64, tolerance: F64 | float) -> None:
    """Every element within its own tolerance; NaN never is."""
    error = np.abs(actual - expected)
    assert (error <= tolerance).all(), error.max()


def check_quantize(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(1)
    for tokens, columns in ((1, 32), (3, 96), (17, 256)):
        x = rng.standard_normal((tokens, columns)).astype(np.float32)
        x *= 10.0 ** rng.integers(-20, 20, (tokens, 1)).astype(np.float32)
        x[0, -32:] *= rng.integers(0, 2, 32).astype(np.float32)
        made = run_quantize(kernels, x)
        groups = x.reshape(tokens, -1, 32)
        largest = np.abs(groups).max(axis=2)
        assert same_bits(made.scales, largest / np.float32(127))
        # Two roundings, of 127 / max and of the product, before that to an integer.
        exact = groups.astype(np.float64) * 127 / largest[..., None]
        q = made.q.reshape(groups.shape)
        assert (np.abs(q - exact) <= 0.5 + 2 * 127 * U).all()
        assert (made.sums == q.sum(axis=2, dtype=np.int32)).all()
        reference = run_quantize(scalar, x)
        assert same_bits(made.q, reference.q)
        assert same_bits(made.scales, reference.scales)
        assert same_bits(made.sums, reference.sums)


def check_round_bf16(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # one rounding: all have the oracle's bits
    rng = np.random.default_rng(2)
    for length in LENGTHS:
        x = (rng.standard_normal(length) * 10.0 ** rng.integers(-30, 30, length)).astype(np.float32)
        assert same_bits(run_round_bf16(kernels, x), nearest_bf16(x))


def nearest_bf16(x: F32) -> NDArray[np.uint16]:
    """The bits of the nearest bf16 to finite numbers: of the one toward zero or the next."""
    bits = x.view(np.uint32)
    below = bits & np.uint32(0xFFFF0000)
    above = below + np.uint32(0x10000)
    down = np.abs(x.astype(np.float64) - below.view(np.float32))
    up = np.abs(x.astype(np.float64) - above.view(np.float32))
    odd = (below >> 16 & 1) == 1
    return np.where((up < down) | ((up == down) & odd), above >> 16, below >> 16).astype(np.uint16)


def columns_for(format: TensorFormat) -> tuple[int, ...]:
    if not format.is_quantized:
        return FLOAT_COLUMNS
    return tuple(format.block_elements * num_blocks for num_blocks in (1, 2, 3))


def check_linear(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    for num_columns in columns_for(format):
        case = LinearCase.make(scalar, format, num_columns, ROWS[-1], TOKENS[-1])
        reference = case.run(scalar, ROWS[-1], TOKENS[-1])
        if kernels.isa == "scalar":
            assert_close(reference, *case.oracle())
        # However many rows and tokens there are, an element has the same bits.
        for num_rows in ROWS:
            for num_tokens in TOKENS:
                made = case.run(kernels, num_rows, num_tokens)
                assert same_bits(made, np.ascontiguousarray(reference[:num_tokens, :num_rows]))


def check_linear_fast(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    """Weights are rounded to bf16 as embedded; what is left is the rounding of sums.

    In decodes as in prompts: an element has the same bits for any number of tokens.
    """
    for num_columns in columns_for(format):
        case = LinearCase.make(scalar, format, num_columns, ROWS[-1], FAST_TOKENS[-1])
        case = case.with_bf16_activations()
        rounded = nearest_bf16(case.weights.values).astype(np.uint32) << 16
        reference = case.run_fast(kernels, ROWS[-1], FAST_TOKENS[-1])
        assert_close(reference, *case.fast_oracle(rounded.view(np.float32)))
        for num_rows in (1, 17):
            for num_tokens in FAST_TOKENS:
                made = case.run_fast(kernels, num_rows, num_tokens)
                assert same_bits(made, np.ascontiguousarray(reference[:num_tokens, :num_rows]))


def check_embed(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    del scalar  # exact, so that all have the oracle's bits
    rng = np.random.default_rng(3)
    for num_columns in columns_for(format):
        weights = make_weights(format, 33, num_columns, rng)
        for num_rows in (1, 17, 33):
            panels = guarded(weights.panels(num_rows))
            for row in {0, num_rows // 2, num_rows - 1}:
                out = guarded_output(num_columns, dtype=np.float32)
                kernels.embed(format.label, panels, num_rows, row, out.array)
                out.assert_intact()
                assert (out.array == weights.values[row]).all()


def check_rms_norm(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(4)
    epsilon = 1e-5
    shapes = ((1, 1, 1), (3, 2, 8), (2, 3, 24), (7, 1, 33), (2, 1, 2048))
    for num_tokens, num_groups, group in shapes:
        x = rng.standard_normal((num_tokens, num_groups * group)).astype(np.float32)
        x[:, -1] = 1.5
        weight = rng.uniform(0.5, 1.5, group).astype(np.float32)

        def run(which: Kernels, x: F32 = x, weight: F32 = weight) -> F32:
            out = guarded_output(*x.shape, dtype=np.float32)
            which.rms_norm(guarded(x), guarded(weight), out.array, epsilon)
            out.assert_intact()
            return out.array

        made = run(kernels)
        wide = x.reshape(num_tokens, num_groups, group).astype(np.float64)
        root = np.sqrt((wide**2).mean(axis=2, keepdims=True) + epsilon)
        expected = (wide / root * weight).reshape(x.shape)
        # Half the error of the mean (a chain of group / 16, a tree of 4, a division, an addition),
        # then a root, a division and two products.
        assert_close(made, expected, ((group / 16 + 7) / 2 + 4) * U * np.abs(expected))
        assert same_bits(made, run(scalar))
        in_place = np.array(x)
        kernels.rms_norm(in_place, weight, in_place, epsilon)
        assert same_bits(in_place, np.ascontiguousarray(made))
        kernels.rms_norm(x, np.ones(group, dtype=np.float32), in_place, epsilon)
        rows = np.array(x.reshape(-1, group))
        kernels.rms_norm(rows, None, rows, epsilon)
        assert same_bits(rows, in_place.reshape(-1, group))


def check_layer_norm(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(11)
    epsilon = 1e-5
    for num_tokens, num_columns in ((1, 1), (3, 8), (2, 33), (1, 250), (2, 2048)):
        x = (rng.standard_normal((num_tokens, num_columns)) + 0.5).astype(np.float32)
        x[:, -1] = 1.5
        weight = rng.uniform(0.5, 1.5, num_columns).astype(np.float32)

        def run(which: Kernels, x: F32 = x, weight: F32 = weight) -> F32:
            out = guarded_output(*x.shape, dtype=np.float32)
            which.layer_norm(guarded(x), guarded(weight), out.array, epsilon)
            out.assert_intact()
            return out.array

        made = run(kernels)
        wide = x.astype(np.float64)
        centered = wide - wide.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(axis=1, keepdims=True) + epsilon)
        expected = centered / deviation * weight
        # The mean (a chain of columns / 16, a tree of 4, a division) is off by so much of the
        # magnitudes, and so is what is left of each value, by one rounding more. Then as rms_norm.
        chain = num_columns / 16 + 6
        of_mean = chain * U * np.abs(wide).mean(axis=1, keepdims=True) + U * np.abs(wide)
        relative = (chain + 6) * U + of_mean / deviation
        assert_close(made, expected, relative * np.abs(expected) + of_mean / deviation * weight)
        assert same_bits(made, run(scalar))
        in_place = np.array(x)
        kernels.layer_norm(in_place, weight, in_place, epsilon)
        assert same_bits(in_place, np.ascontiguousarray(made))


def check_rope(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # three roundings in a given order: all have NumPy's bits
    rng = np.random.default_rng(5)
    shapes = ((1, 8, 8), (3, 24, 24), (2, 40, 40), (5, 64, 64), (2, 128, 128), (2, 40, 18))
    for num_heads, head_dim, rotary_dim in shapes:
        x = rng.standard_normal((num_heads, head_dim)).astype(np.float32)
        angles = rng.uniform(0.1, 6.0, rotary_dim // 2)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b, rest = np.split(x, [rotary_dim // 2, rotary_dim], axis=1)
        expected = np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=1)
        output = guarded_output(num_heads, head_dim, dtype=np.float32)
        output.array[...] = x
        kernels.rope(output.array, guarded(cos), guarded(sin))
        output.assert_intact()
        assert same_bits(output.array, expected)


def check_silu_gate(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(6)
    for length in LENGTHS:
        gate = (rng.standard_normal(length) * 4).astype(np.float32)
        gate[: length // 8] *= 8
        up = rng.uniform(0.5, 2.0, length).astype(np.float32)
        out = guarded_output(length, dtype=np.float32)
        kernels.silu_gate(guarded(gate), guarded(up), out.array)
        out.assert_intact()
        expected = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
        # exp within 1 ulp (2 U), then a sum, a quotient and a product. Where exp(-gate) is
        # infinite the result is 0 instead of less than 89 exp(-88.7) < 3e-37.
        assert_close(out.array, expected, 5 * U * np.abs(expected) + 3e-37 * up)
        reference = np.empty_like(gate)
        scalar.silu_gate(gate, up, reference)
        assert same_bits(out.array, reference)


def check_product_gate(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # one rounding: all have NumPy's bits
    rng = np.random.default_rng(17)
    for length in LENGTHS:
        gate, up = rng.standard_normal((2, length)).astype(np.float32)
        out = guarded_output(length, dtype=np.float32)
        kernels.product_gate(guarded(gate), guarded(up), out.array)
        out.assert_intact()
        assert same_bits(out.array, gate * up)
        kernels.product_gate(gate, up, up)
        assert same_bits(out.array, up)


def check_relu_squared(kernels: Kernels, scalar: Kernels) -> None:
    del scalar
    rng = np.random.default_rng(18)
    for length in LENGTHS:
        x = rng.standard_normal(length).astype(np.float32)
        x[-1] = 0.75
        x[: length // 8] = -0.0
        out = guarded_output(length, dtype=np.float32)
        kernels.relu_squared(guarded(x), out.array)
        out.assert_intact()
        assert same_bits(out.array, np.square(np.where(x > 0, x, np.float32(0))))
        x[0] = np.nan
        kernels.relu_squared(x, x)
        assert np.isnan(x[0])
        assert same_bits(x[1:], np.ascontiguousarray(out.array[1:]))


def check_gate(
    name: str, expected: Callable[[F64, F64], F64], error: Callable[[F64], F64]
) -> Callable[[Kernels, Kernels], None]:
    """The check of a gated activation, whose relative error at a gate is ``error``."""

    def check(kernels: Kernels, scalar: Kernels) -> None:
        rng = np.random.default_rng(12)
        for length in LENGTHS:
            gate = (rng.standard_normal(length) * 4).astype(np.float32)
            gate[: length // 8] *= 8
            up = (rng.uniform(0.5, 2.0, length) * rng.choice([1, 1, 8], length)).astype(np.float32)
            out = guarded_output(length, dtype=np.float32)
            getattr(kernels, name)(guarded(gate), guarded(up), out.array)
            out.assert_intact()
            wide = gate.astype(np.float64)
            wanted = expected(wide, up.astype(np.float64))
            # What is below 1e-36 is 0 where the exponential is infinite.
            assert_close(out.array, wanted, error(wide) * U * np.abs(wanted) + 1e-36)
            reference = np.empty_like(gate)
            getattr(scalar, name)(gate, up, reference)
            assert same_bits(out.array, reference)

    return check


def gelu(gate: F64, up: F64) -> F64:
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    result: F64 = gate / (1 + np.exp(np.minimum(-2 * inner, 700))) * up
    return result


def gelu_error(gate: F64) -> F64:
    """Five roundings are in the exponent, where they count as often as it is large."""
    exponent = 2 * math.sqrt(2 / math.pi) * np.abs(gate + 0.044715 * gate**3)
    return 6 + 5 * np.minimum(exponent, 90)


def clamped(gate: F64, up: F64) -> F64:
    bounded = np.minimum(gate, 7)
    result: F64 = bounded / (1 + np.exp(-1.702 * bounded)) * (np.clip(up, -7, 7) + 1)
    return result


def clamped_error(gate: F64) -> F64:
    """Two roundings are in the exponent, which is at most about 88."""
    return 7 + 2 * np.minimum(1.702 * np.abs(np.minimum(gate, 7)), 90)


def check_sigmoid(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(13)
    for length in LENGTHS:
        x = (rng.standard_normal(length) * 4).astype(np.float32)
        x[: length // 8] *= 8
        out = guarded_output(length, dtype=np.float32)
        kernels.sigmoid(guarded(x), out.array)
        out.assert_intact()
        expected = 1 / (1 + np.exp(-x.astype(np.float64)))
        assert_close(out.array, expected, 5 * U * expected + 3e-38)
        reference = np.empty_like(x)
        scalar.sigmoid(x, reference)
        assert same_bits(out.array, reference)


def check_softcap(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(14)
    for length in LENGTHS:
        x = (rng.standard_normal(length) * 10.0 ** rng.integers(-4, 3, length)).astype(np.float32)
        output = guarded_output(length, dtype=np.float32)
        output.array[...] = x
        kernels.softcap(output.array, 2.5)
        output.assert_intact()
        expected = 2.5 * np.tanh(x.astype(np.float64) / 2.5)
        # A quotient, tanh within 1.5 ulp (3 U), a product.
        assert_close(output.array, expected, 5 * U * np.abs(expected))
        reference = x.copy()
        scalar.softcap(reference, 2.5)
        assert same_bits(output.array, reference)


def check_scaling(name: str) -> Callable[[Kernels, Kernels], None]:
    """The check of kernels that change ``x`` by one or two roundings: all have NumPy's bits."""

    def check(kernels: Kernels, scalar: Kernels) -> None:
        del scalar
        rng = np.random.default_rng(15)
        factor = np.float32(0.37)
        for length in LENGTHS:
            x = rng.standard_normal(length).astype(np.float32)
            y = rng.standard_normal(length).astype(np.float32)
            output = guarded_output(length, dtype=np.float32)
            output.array[...] = x
            match name:
                case "add_scaled":
                    kernels.add_scaled(output.array, guarded(y), float(factor))
                    expected = x + factor * y
                case "scale":
                    kernels.scale(output.array, float(factor))
                    expected = x * factor
                case _:
                    kernels.multiply(output.array, guarded(y))
                    expected = x * y
            output.assert_intact()
            assert same_bits(output.array, expected)

    return check


def check_add(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # one rounding: all have NumPy's bits
    rng = np.random.default_rng(7)
    for length in LENGTHS:
        x = rng.standard_normal(length).astype(np.float32)
        y = rng.standard_normal(length).astype(np.float32)
        output = guarded_output(length, dtype=np.float32)
        output.array[...] = x
        kernels.add(output.array, guarded(y))
        output.assert_intact()
        assert same_bits(output.array, x + y)


def check_append_kv(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # one rounding: all have NumPy's bits
    rng = np.random.default_rng(8)
    shapes = ((1, 8, 8), (3, 24, 24), (2, 64, 64), (2, 24, 40), (1, 40, 5), (2, 24, 0))
    for num_kv_heads, head_dim, value_dim in shapes:
        padded = -(-value_dim // 16) * 16
        keys = guarded_output(3, num_kv_heads, head_dim, 16, dtype=np.uint16)
        values = guarded_output(3, num_kv_heads, 16, padded, dtype=np.uint16)
        expected_keys, expected_values = keys.array.copy(), values.array.copy()
        for block, offset in ((0, 0), (2, 15), (1, 6)):
            k = rng.standard_normal((num_kv_heads, head_dim)).astype(np.float32)
            v = rng.standard_normal((num_kv_heads, value_dim)).astype(np.float32)
            if value_dim == 0:
                kernels.append_kv(guarded(k), None, keys.array, None, block, offset)
            else:
                kernels.append_kv(guarded(k), guarded(v), keys.array, values.array, block, offset)
            expected_keys[block, :, :, offset] = k.astype(np.float16).view(np.uint16)
            expected_values[block, :, offset, :value_dim] = v.astype(np.float16).view(np.uint16)
            expected_values[block, :, offset, value_dim:] = 0
            keys.assert_intact()
            values.assert_intact()
        assert same_bits(keys.array, expected_keys)
        assert same_bits(values.array, expected_values)


ATTENTION_SHAPES = ((1, 1, 8), (4, 2, 24), (8, 2, 64), (7, 1, 40), (6, 6, 128))
# (position, tokens, window): within a span, at the borders of blocks and spans, over several spans.
ATTENTION_PLACES = (
    (0, 1, None),
    (5, 1, None),
    (15, 1, None),
    (16, 1, None),
    (40, 1, 24),
    (30, 1, 1),
    (255, 1, None),
    (256, 1, None),
    (257, 1, 2),
    (600, 1, None),
    (0, 33, None),
    (14, 3, None),
    (250, 14, None),
    (254, 5, 250),
    (500, 21, 9),
)


def attention_cases(shapes: Iterable[tuple[int, int, int]]) -> Iterator[AttentionCase]:
    for num_heads, num_kv_heads, head_dim in shapes:
        for position, num_tokens, window in ATTENTION_PLACES:
            yield AttentionCase.make(
                num_heads,
                num_kv_heads,
                head_dim,
                position=position,
                num_tokens=num_tokens,
                window=window,
            )


def capped_cases() -> Iterator[AttentionCase]:
    """Some with a soft cap, sinks or both."""
    rng = np.random.default_rng(16)
    for number, case in enumerate(attention_cases(ATTENTION_SHAPES[1:4:2])):
        sinks = rng.standard_normal((case.q.shape[1],)).astype(np.float32)
        yield replace(
            case,
            softcap=1.5 if number % 3 != 0 else 0.0,
            sinks=sinks if number % 3 != 1 else None,
        )


# (heads, kv_heads, head_dim, value_dim, value_start): values of another width than keys, and values
# that are columns of the keys, some of them as in multi-head latent attention.
VALUE_SHAPES = (
    (4, 2, 24, 5, None),
    (6, 3, 8, 40, None),
    (7, 1, 40, 32, 8),
    (4, 2, 24, 19, 3),
    (5, 1, 72, 64, 0),
)


def value_cases(
    shapes: Iterable[tuple[int, int, int, int, int | None]],
) -> Iterator[AttentionCase]:
    for num_heads, num_kv_heads, head_dim, value_dim, value_start in shapes:
        for position, num_tokens, window in ATTENTION_PLACES:
            yield AttentionCase.make(
                num_heads,
                num_kv_heads,
                head_dim,
                position=position,
                num_tokens=num_tokens,
                window=window,
                value_dim=value_dim,
                value_start=value_start,
            )


def check_attention(kernels: Kernels, scalar: Kernels) -> None:
    for case in (
        *attention_cases(ATTENTION_SHAPES),
        *capped_cases(),
        *value_cases(VALUE_SHAPES),
    ):
        made = case.run(kernels)
        if kernels.isa == "scalar":
            assert_close(made, *case.oracle())
        assert same_bits(made, case.run(scalar))
        if case.values is None:
            assert same_bits(made, case.with_stored_values().run(kernels))
        # What a token gets does not depend on its neighbours, nor on what it does not see.
        for token in range(0, len(made) if len(made) > 1 else 0, 6):
            assert same_bits(case.alone(token).run(kernels)[0], made[token])


def check_attention_in_parts(kernels: Kernels, scalar: Kernels) -> None:
    for case in (
        *attention_cases(ATTENTION_SHAPES[1:4:2]),
        *capped_cases(),
        *value_cases(VALUE_SHAPES[::2]),
    ):
        assert same_bits(case.run(kernels, in_parts=True), case.run(scalar))


def check_exp_sum(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(10)
    for length in LENGTHS:
        x = (rng.standard_normal(length) * 3).astype(np.float32)
        largest = float(x.max())
        out = guarded_output(length, dtype=np.float32)
        total = kernels.exp_sum(guarded(x), largest, out.array)
        out.assert_intact()
        expected = np.exp((x - x.max()).astype(np.float64))
        assert_close(out.array, expected, 2 * U * expected + 2.0**-149)
        # Besides, a chain of length / 16 and a tree of 4.
        assert abs(total - expected.sum()) <= (length / 16 + 4 + 2) * U * expected.sum()
        reference = np.empty_like(x)
        assert total == scalar.exp_sum(x, largest, reference)
        assert same_bits(out.array, reference)


_PLAIN_CHECKS: dict[str, Callable[[Kernels, Kernels], None]] = {
    "quantize": check_quantize,
    "round_bf16": check_round_bf16,
    "rms_norm": check_rms_norm,
    "layer_norm": check_layer_norm,
    "rope": check_rope,
    "silu_gate": check_silu_gate,
    "gelu_gate": check_gate("gelu_gate", gelu, gelu_error),
    "clamped_gate": check_gate("clamped_gate", clamped, clamped_error),
    "product_gate": check_product_gate,
    "relu_squared": check_relu_squared,
    "add": check_add,
    "add_scaled": check_scaling("add_scaled"),
    "scale": check_scaling("scale"),
    "multiply": check_scaling("multiply"),
    "sigmoid": check_sigmoid,
    "softcap": check_softcap,
    "append_kv": check_append_kv,
    "attention": check_attention,
    "attention_span": check_attention_in_parts,
    "attention_merge": check_attention_in_parts,
    "causal_conv": check_causal_conv,
    "delta_inputs": check_delta_inputs,
    "gated_delta": check_gated_delta,
    "scan_inputs": check_scan_inputs,
    "state_scan": check_state_scan,
    "exp_sum": check_exp_sum,
    "copy_allowed": check_copy_allowed,
    "draw_weights": check_draw_weights,
    "kept_sums": check_kept_sums,
    "split_logits": check_split_logits,
}
_FORMAT_CHECKS: dict[str, Callable[[Kernels, Kernels, TensorFormat], None]] = {
    "linear": check_linear,
    "linear_fast": check_linear_fast,
    "embed": check_embed,
    "widen": check_widen,
    "encode": check_encode,
}
_FORMATS_OF_KERNEL = {
    "linear": FORMATS,
    "linear_fast": FORMATS,
    "embed": FORMATS,
    "widen": FLOAT_FORMATS,
    "encode": TARGET_FORMATS,
}
KERNEL_NAMES = (
    *_PLAIN_CHECKS,
    *(
        f"{kernel}.{format.label}"
        for kernel in _FORMAT_CHECKS
        for format in _FORMATS_OF_KERNEL[kernel]
        if kernel != "linear_fast"
    ),
)
"""Of every instruction set."""


def kernel_names(isa: str) -> tuple[str, ...]:
    """What ``check_kernel`` checks of an instruction set."""
    *_, arithmetic = arithmetics_with((isa,))
    fast = [format for format in FORMATS if format in arithmetic.fast_formats]
    return (*KERNEL_NAMES, *(f"linear_fast.{format.label}" for format in fast))


LATENT = "attention.latent"
"""A line of its own in the check program: attention whose values are columns of the keys."""


def line_names(isa: str) -> tuple[str, ...]:
    """How the lines begin that the check program (cpp/check) prints of an instruction set."""
    return (*kernel_names(isa), LATENT)


def check_kernel(name: str, kernels: Kernels, scalar: Kernels) -> None:
    """Run the check of ``kernel`` or ``kernel.format`` on ``kernels``."""
    kernel, _, label = name.partition(".")
    if kernel in _PLAIN_CHECKS:
        _PLAIN_CHECKS[kernel](kernels, scalar)
    else:
        format = next(format for format in FORMATS if format.label == label)
        _FORMAT_CHECKS[kernel](kernels, scalar, format)
