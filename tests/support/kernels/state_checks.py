"""What is demanded of the kernels of ops with a state.

The scalar kernels are compared with NumPy in float64. Errors of a state decay with it, so that they
are those of a few tokens: the tolerances are a multiple of the roundings of a token, relative to
the largest number. Bits depend neither on how the tokens nor on how the columns are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from support.kernels.inputs import F32, F64, U, guarded, guarded_output, same_bits

from potluck.kernels import Kernels

TOKENS = 9
WHOLE = (0, TOKENS)
CUT = (0, 1, 2, 5, TOKENS)
# (heads, key heads or groups, rows of a state, columns): strips and parts, alone and in fours.
SHAPES = ((1, 1, 8, 16), (3, 3, 5, 20), (4, 2, 33, 64), (2, 1, 24, 80), (6, 3, 16, 7))


def _assert_close(actual: F32, expected: F64, roundings: float) -> None:
    tolerance = roundings * U * np.abs(expected).max()
    assert np.abs(actual - expected).max() <= tolerance  # false for NaN


def _softplus(x: F32) -> F64:
    result: F64 = np.logaddexp(0, x.astype(np.float64))
    return result


def _sigmoid(x: F64) -> F64:
    result: F64 = 1 / (1 + np.exp(-x))
    return result


def _normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


def _factors(rng: np.random.Generator, num_heads: int) -> F32:
    """What softplus is taken of: around 0, where it is tiny, and where it is the number itself."""
    x = _normal(rng, num_heads)
    special = np.array([-100, -17, -3, 16.5, 19.99, 20.01, 60], np.float32)
    x[: len(special)] = special[:num_heads]
    return rng.permutation(x)


def _assert_decays(decays: F32, rate: F32, steps: F64) -> None:
    """The error of the exponent counts as often as it is large."""
    exponents = rate * steps
    tolerance = (8 * np.abs(exponents) + 4) * U * np.exp(exponents) + 1e-38
    assert (np.abs(decays - np.exp(exponents)) <= tolerance).all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How tokens are cut, and strips; with ``is_fresh`` the state begins as zeros."""

    is_fresh: bool
    cuts: tuple[int, ...] = WHOLE
    by_strip: bool = False

    def parts(self) -> Iterator[tuple[int, int, bool]]:
        """Of the tokens: first, end, and whether the state is fresh."""
        for first, end in pairwise(self.cuts):
            yield first, end, self.is_fresh and first == 0

    def strips(self, count: int) -> Iterator[tuple[int, int]]:
        """First and end of each part; the last part first."""
        if not self.by_strip:
            yield 0, count
            return
        for start in reversed(range(0, count, 3)):
            yield start, min(start + 3, count)


WAYS = tuple(
    Way(is_fresh=is_fresh, cuts=cuts, by_strip=by_strip)
    for is_fresh in (True, False)
    for cuts in (WHOLE, CUT)
    for by_strip in (False, True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvCase:
    """A convolution, and the state that it begins from."""

    x: F32
    weight: F32
    bias: F32 | None
    start: F32
    has_silu: bool

    def run(
        self, kernels: Kernels, way: Way, columns: tuple[int, ...], *, in_place: bool
    ) -> tuple[F32, F32]:
        """The outputs and the state."""
        state = guarded_output(*self.start.shape, dtype=np.float32)
        state.array[...] = self.start
        out = guarded_output(*self.x.shape, dtype=np.float32)
        out.array[...] = self.x if in_place else np.nan
        source = out.array if in_place else guarded(self.x)
        for first, end, is_fresh in way.parts():
            for left, right in pairwise(columns):
                kernels.causal_conv(
                    source[first:end],
                    guarded(self.weight),
                    None if self.bias is None else guarded(self.bias),
                    state.array,
                    is_fresh,
                    self.has_silu,
                    out.array[first:end],
                    left,
                    right,
                )
        out.assert_intact()
        state.assert_intact()
        return out.array.copy(), state.array.copy()

    def check(self, kernels: Kernels, scalar: Kernels, *, is_fresh: bool) -> None:
        """Raise ``AssertionError`` unless both give what NumPy does, however it is cut."""
        width, kernel = self.weight.shape
        before = np.zeros_like(self.start) if is_fresh else self.start
        rows = np.concatenate([before, self.x])
        expected = np.zeros((TOKENS, width))
        for j in range(kernel):
            expected += self.weight[:, j].astype(np.float64) * rows[j : j + TOKENS]
        if self.bias is not None:
            expected += self.bias
        if self.has_silu:
            expected *= _sigmoid(expected)
        way, whole = Way(is_fresh=is_fresh), (0, width)
        made, state = self.run(kernels, way, whole, in_place=False)
        _assert_close(made, expected, kernel + 8)
        assert same_bits(state, np.ascontiguousarray(rows[TOKENS:]))
        parts = (0, 16, width) if width > 16 else whole
        again = (
            self.run(kernels, Way(is_fresh=is_fresh, cuts=CUT), whole, in_place=True),
            self.run(kernels, way, parts, in_place=True),
            self.run(scalar, way, whole, in_place=False),
        )
        for out, after in again:
            assert same_bits(out, made)
            assert same_bits(after, state)


def check_causal_conv(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(50)
    for width, kernel in ((1, 2), (16, 4), (40, 3), (530, 4), (70, 16)):
        for has_bias, has_silu in ((False, False), (True, False), (True, True)):
            case = ConvCase(
                x=_normal(rng, TOKENS, width),
                weight=_normal(rng, width, kernel),
                bias=_normal(rng, width) if has_bias else None,
                start=_normal(rng, kernel - 1, width),
                has_silu=has_silu,
            )
            for is_fresh in (True, False):
                case.check(kernels, scalar, is_fresh=is_fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInputCase:
    """What the gated delta rule takes of a token."""

    x: F32
    decay: F32
    beta: F32
    rate: F32
    decay_bias: F32
    epsilon: float
    num_key_heads: int
    key_dim: int

    def run(self, kernels: Kernels) -> tuple[F32, F32, F32, F32]:
        """Keys and queries, their products, decays and betas."""
        keys = guarded_output(self.num_key_heads, 2, self.key_dim, dtype=np.float32)
        products = guarded_output(self.num_key_heads, dtype=np.float32)
        decays, betas = (guarded_output(len(self.decay), dtype=np.float32) for _ in range(2))
        outputs = (keys, products, decays, betas)
        kernels.delta_inputs(
            guarded(self.x),
            guarded(self.decay),
            guarded(self.beta),
            guarded(self.rate),
            guarded(self.decay_bias),
            self.epsilon,
            keys.array,
            products.array,
            decays.array,
            betas.array,
        )
        for output in outputs:
            output.assert_intact()
        return keys.array, products.array, decays.array, betas.array


def check_delta_inputs(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(51)
    for num_heads, num_key_heads, key_dim, _ in (*SHAPES, (35, 7, 128, 16)):
        case = DeltaInputCase(
            x=_normal(rng, 2 * num_key_heads * key_dim),
            decay=_factors(rng, num_heads),
            beta=4 * _normal(rng, num_heads),
            rate=-np.exp(_normal(rng, num_heads)),
            decay_bias=0.1 * _normal(rng, num_heads),
            epsilon=0.25,
            num_key_heads=num_key_heads,
            key_dim=key_dim,
        )
        keys, products, decays, betas = made = case.run(kernels)
        split = case.x.reshape(2, num_key_heads, key_dim).astype(np.float64)
        query, key = split / np.sqrt((split**2).sum(-1, keepdims=True) + case.epsilon)
        query /= key_dim**0.5
        # Sums of squares over 16 lanes and a tree; a root, quotients and products.
        _assert_close(keys[:, 0], key, key_dim / 16 + 10)
        _assert_close(keys[:, 1], query, key_dim / 16 + 12)
        error = np.abs(products - (key * query).sum(-1)).max()
        assert error <= (3 * key_dim / 16 + 28) * U * np.abs(key * query).sum(-1).max()
        _assert_decays(decays, case.rate, _softplus(case.decay + case.decay_bias))
        _assert_close(betas, _sigmoid(case.beta.astype(np.float64)), 6)
        for one, reference in zip(made, case.run(scalar), strict=True):
            assert same_bits(one, reference)


def _strips(state: F64) -> F32:
    """States ``[heads, rows, columns]`` as the kernels have them, filled up with zeros."""
    heads, rows, columns = state.shape
    num_strips = -(-columns // 16)
    padded = np.zeros((heads, rows, num_strips * 16), np.float32)
    padded[:, :, :columns] = state
    split = padded.reshape(heads, rows, num_strips, 16).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(split)


def _without_strips(state: F32, columns: int) -> F32:
    heads, num_strips, rows, _ = state.shape
    split = state.transpose(0, 2, 1, 3).reshape(heads, rows, num_strips * 16)
    return np.ascontiguousarray(split[:, :, :columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCase:
    """The gated delta rule, of ``values`` ``[tokens, heads, value_dim]``."""

    keys: F32
    products: F32
    decays: F32
    betas: F32
    values: F32
    start: F64
    is_tiled: bool

    @classmethod
    def make(cls, shape: tuple[int, int, int, int], *, is_tiled: bool) -> DeltaCase:
        num_heads, num_key_heads, key_dim, value_dim = shape
        rng = np.random.default_rng(52)
        keys = _normal(rng, num_key_heads, TOKENS, 2, key_dim)
        keys /= np.sqrt((keys**2).sum(-1, keepdims=True))
        products = np.einsum("htk,htk->th", keys[:, :, 0], keys[:, :, 1])
        return cls(
            keys=keys,
            products=np.ascontiguousarray(products),
            decays=rng.uniform(0, 1, (TOKENS, num_heads)).astype(np.float32),
            betas=rng.uniform(0, 1, (TOKENS, num_heads)).astype(np.float32),
            values=_normal(rng, TOKENS, num_heads, value_dim),
            start=rng.standard_normal((num_heads, key_dim, value_dim))
            .astype(np.float32)
            .astype(np.float64),
            is_tiled=is_tiled,
        )

    def run(self, kernels: Kernels, way: Way) -> tuple[F32, F32]:
        """The outputs and the state."""
        num_heads, key_dim, value_dim = self.start.shape
        num_strips = -(-value_dim // 16)
        state = guarded_output(num_heads, num_strips, key_dim, 16, dtype=np.float32)
        if not way.is_fresh:
            state.array[...] = _strips(self.start)
        out = guarded_output(*self.values.shape, dtype=np.float32)
        for first, end, is_fresh in way.parts():
            for strip, end_strip in way.strips(num_heads * num_strips):
                kernels.gated_delta(
                    guarded(self.keys[:, first:end]),
                    guarded(self.products[first:end]),
                    guarded(self.decays[first:end]),
                    guarded(self.betas[first:end]),
                    guarded(self.values[first:end]),
                    state.array,
                    self.is_tiled,
                    is_fresh,
                    out.array[first:end],
                    strip,
                    end_strip,
                )
        out.assert_intact()
        state.assert_intact()
        return out.array.copy(), _without_strips(state.array, value_dim)

    def oracle(self, *, is_fresh: bool) -> tuple[F64, F64]:
        """The outputs and the state, in float64 and as the op is defined."""
        num_heads, num_key_heads = len(self.start), len(self.keys)
        heads = np.arange(num_heads)
        shared = num_heads // num_key_heads
        key_heads = heads % num_key_heads if self.is_tiled else heads // shared
        key, query = np.moveaxis(self.keys[key_heads].astype(np.float64), 2, 0)
        state = np.zeros_like(self.start) if is_fresh else self.start
        out = np.empty(self.values.shape)
        for t in range(TOKENS):
            state = state * self.decays[t, :, None, None]
            error = self.values[t] - np.einsum("hk,hkv->hv", key[:, t], state)
            state = state + key[:, t, :, None] * (self.betas[t, :, None] * error)[:, None]
            out[t] = np.einsum("hk,hkv->hv", query[:, t], state)
        return out, state


def check_gated_delta(kernels: Kernels, scalar: Kernels) -> None:
    for shape in SHAPES:
        for is_tiled in (False, True):
            case = DeltaCase.make(shape, is_tiled=is_tiled)
            for way in WAYS:
                made, state = case.run(kernels, way)
                expected, expected_state = case.oracle(is_fresh=way.is_fresh)
                # Chains of sums over the keys, and several roundings of each term.
                _assert_close(made, expected, 4 * shape[2] + 20)
                _assert_close(state, expected_state, 4 * shape[2] + 20)
                reference = case.run(scalar, Way(is_fresh=way.is_fresh))
                assert same_bits(made, reference[0])
                assert same_bits(state, reference[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanInputCase:
    """What the scan takes of a token."""

    step: F32
    step_bias: F32
    rate: F32
    least: float
    largest: float

    def run(self, kernels: Kernels) -> tuple[F32, F32]:
        """Steps and decays."""
        steps, decays = (guarded_output(len(self.step), dtype=np.float32) for _ in range(2))
        kernels.scan_inputs(
            guarded(self.step),
            guarded(self.step_bias),
            guarded(self.rate),
            self.least,
            self.largest,
            steps.array,
            decays.array,
        )
        steps.assert_intact()
        decays.assert_intact()
        return steps.array, decays.array


def check_scan_inputs(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(53)
    for num_heads in (1, 15, 16, 17, 40):
        for least, largest in ((0.0, np.inf), (0.01, 2.0)):
            case = ScanInputCase(
                step=_factors(rng, num_heads),
                step_bias=0.1 * _normal(rng, num_heads),
                rate=-np.exp(_normal(rng, num_heads)),
                least=least,
                largest=largest,
            )
            steps, decays = made = case.run(kernels)
            expected = np.clip(_softplus(case.step + case.step_bias), least, largest)
            # Of the exponential, the logarithm and the limits; of e^-100 half a subnormal.
            assert (np.abs(steps - expected) <= 6 * U * expected + 2.0**-149).all()
            _assert_decays(decays, case.rate, expected)
            for one, reference in zip(made, case.run(scalar), strict=True):
                assert same_bits(one, reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCase:
    """The scan, of ``x`` ``[tokens, heads * head_dim + 2 * groups * state_dim]``."""

    x: F32
    steps: F32
    decays: F32
    skip: F32
    start: F64
    num_groups: int

    @classmethod
    def make(cls, shape: tuple[int, int, int, int]) -> ScanCase:
        num_heads, num_groups, state_dim, head_dim = shape
        rng = np.random.default_rng(54)
        return cls(
            x=_normal(rng, TOKENS, num_heads * head_dim + 2 * num_groups * state_dim),
            steps=rng.uniform(0.1, 2, (TOKENS, num_heads)).astype(np.float32),
            decays=rng.uniform(0, 1, (TOKENS, num_heads)).astype(np.float32),
            skip=_normal(rng, num_heads),
            start=rng.standard_normal((num_heads, state_dim, head_dim))
            .astype(np.float32)
            .astype(np.float64),
            num_groups=num_groups,
        )

    def run(self, kernels: Kernels, way: Way) -> tuple[F32, F32]:
        """The outputs and the state."""
        num_heads, state_dim, head_dim = self.start.shape
        num_strips = -(-head_dim // 16)
        state = guarded_output(num_heads, num_strips, state_dim, 16, dtype=np.float32)
        if not way.is_fresh:
            state.array[...] = _strips(self.start)
        out = guarded_output(TOKENS, num_heads, head_dim, dtype=np.float32)
        for first, end, is_fresh in way.parts():
            for strip, end_strip in way.strips(num_heads * num_strips):
                kernels.state_scan(
                    guarded(self.x[first:end]),
                    guarded(self.steps[first:end]),
                    guarded(self.decays[first:end]),
                    guarded(self.skip),
                    self.num_groups,
                    state.array,
                    is_fresh,
                    out.array[first:end],
                    strip,
                    end_strip,
                )
        out.assert_intact()
        state.assert_intact()
        return out.array.copy(), _without_strips(state.array, head_dim)

    def oracle(self, *, is_fresh: bool) -> tuple[F64, F64]:
        """The outputs and the state, in float64 and as the op is defined."""
        num_heads, state_dim, head_dim = self.start.shape
        inner = num_heads * head_dim
        inputs = self.x[:, :inner].reshape(TOKENS, num_heads, head_dim).astype(np.float64)
        groups = np.arange(num_heads) // (num_heads // self.num_groups)
        split = self.x[:, inner:].reshape(TOKENS, 2, self.num_groups, state_dim)
        b, c = split[:, :, groups].swapaxes(0, 1)
        state = np.zeros_like(self.start) if is_fresh else self.start
        out = np.empty((TOKENS, num_heads, head_dim))
        for t in range(TOKENS):
            state = state * self.decays[t, :, None, None]
            state = state + b[t, :, :, None] * (self.steps[t, :, None] * inputs[t])[:, None]
            out[t] = np.einsum("hs,hsd->hd", c[t], state) + self.skip[:, None] * inputs[t]
        return out, state


def check_state_scan(kernels: Kernels, scalar: Kernels) -> None:
    for shape in SHAPES:
        case = ScanCase.make(shape)
        for way in WAYS:
            made, state = case.run(kernels, way)
            expected, expected_state = case.oracle(is_fresh=way.is_fresh)
            # A chain of sums over the state; a number of the state has four roundings of a token.
            _assert_close(made, expected, 2 * shape[2] + 20)
            _assert_close(state, expected_state, 12)
            reference = case.run(scalar, Way(is_fresh=way.is_fresh))
            assert same_bits(made, reference[0])
            assert same_bits(state, reference[1])
