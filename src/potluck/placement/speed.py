"""How fast a unit computes: from the rates of its trial, its device's figures, or a cautious guess.

What a node reports of itself may be wrong, and is never taken at its word: a figure that is not
finite, not positive or absurd counts as unknown. So every speed here is positive and finite.

All speeds are those of a unit whose threads run undisturbed. Where a control group gives them less
time (``usable_share`` below 1), everything takes longer in proportion over many steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from potluck.models.trial_model import TRIAL_FORMAT, TRIAL_LAYERS, TRIAL_PREFILL_TOKENS
from potluck.types.arithmetic import Arithmetic
from potluck.types.hardware import Figure, Figures, Origin, Rates
from potluck.types.placement import Basis
from potluck.types.tensor import TensorFormat

TRIAL_WEIGHTS = TRIAL_LAYERS * 44_040_192
"""Weights of the trial's matrices: 2048² for each of q and o, 2048 × 256 for k and v, three times
2048 × 5632."""
TRIAL_BYTES = TRIAL_FORMAT.row_bytes(TRIAL_WEIGHTS)

_RATES = (1e-3, 1e7)
"""Tokens per second of the trial that are believed: a board of 1 GHz has 2, a large GPU 10⁴."""
_READ_BYTES = (1e6, 1e14)
_OPERATIONS = (1e7, 1e16)

ASSUMED_READ_BYTES_PER_SECOND = 3e9
ASSUMED_MULTIPLY_ADDS_PER_SECOND = 10e9
"""Of a unit of which nothing is known: those of a Raspberry Pi 4."""
_TABLE_SHARE = 0.4
"""What a backend reaches of a figure from a table or a derivation, of which it is a peak."""

_LAYER_SECONDS = (10e-6, 20e-3)
_LEAST_LAYER_SECONDS, _MOST_LAYER_SECONDS = _LAYER_SECONDS
_SHARED_LAYER_SECONDS = 30e-6
_OWN_LAYER_SECONDS = 400e-6
"""Assumed of a device with memory of its own: its driver starts some 18 kernels for a layer."""
STEP_SECONDS = 60e-6
"""What any step takes on the CPU beside its parts: slices are handed over, threads are woken."""

_USABLE_SHARE = 0.001
"""The least: a quota of a thousandth of what its threads could use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A positive, finite number, and what it rests on."""

    value: float
    basis: Basis


@dataclass(frozen=True, kw_only=True)
class UnitSpeed:
    """How fast one unit computes.

    ``read`` are bytes of weights per second when one token is decoded, ``batch`` how many times
    longer the same takes for 8 sequences, and ``chunk`` and ``large`` multiply-adds per second with
    weights in the trial's format for 32 tokens and for many. ``fast_bf16`` are those of products
    in bf16, in a fast arithmetic; None where there is none. ``attention`` are multiply-adds with
    the cache per second. ``layer_seconds`` and ``step_seconds`` pass whatever is computed.
    ``sampling_seconds_per_logit`` are those of choosing a token, per entry of the vocabulary.
    ``usable_share`` is how much of its threads' time it gets.
    """

    read: Estimate
    batch: Estimate
    chunk: Estimate
    large: Estimate
    floats: Estimate
    fast_bf16: Estimate | None
    attention: Estimate
    layer_seconds: Estimate
    step_seconds: Estimate
    sampling_seconds_per_logit: float = 0.6e-9
    usable_share: float = 1.0

    @cached_property
    def decode_basis(self) -> Basis:
        """Return what a prediction of decoding rests on."""
        return worst(self.read.basis, self.layer_seconds.basis)

    @cached_property
    def prefill_basis(self) -> Basis:
        """Return what a prediction of prefill rests on."""
        return self.chunk.basis

    def product_seconds(
        self, format: TensorFormat, num_bytes: float, num_weights: float, num_tokens: float
    ) -> float:
        """Return how long matrices take to be multiplied with ``num_tokens`` tokens.

        They have ``num_weights`` in ``num_bytes`` of ``format``.
        """
        reading = num_bytes / self.read.value
        if num_tokens <= 1:
            return reading
        curve = self._curve(format)
        return max(reading, num_weights * _interpolated(curve, num_tokens))

    def _curve(self, format: TensorFormat) -> tuple[tuple[float, float], ...]:
        """Return seconds per weight by number of tokens, the last per token beyond."""
        found = self._curves.get(format)
        if found is None:
            found = self._curves[format] = self._made_curve(format)
        return found

    @cached_property
    def _curves(self) -> dict[TensorFormat, tuple[tuple[float, float], ...]]:
        return {}

    def _made_curve(self, format: TensorFormat) -> tuple[tuple[float, float], ...]:
        relative = _RELATIVE.get(format, _LIKE_Q8_0)
        bytes_per_weight = format.block_bytes / format.block_elements
        alone = bytes_per_weight / self.read.value
        trial = TRIAL_FORMAT.block_bytes / TRIAL_FORMAT.block_elements / self.read.value
        batch = max(alone, self.batch.value * trial * relative.batch)
        chunk = max(batch, TRIAL_PREFILL_TOKENS / self.chunk.value * relative.chunk)
        rate = self.large.value / relative.large
        if not format.is_quantized:
            rate = self.floats.value
        if self.fast_bf16 is not None and (format.is_quantized or format is TensorFormat.BF16):
            rate = max(rate, self.fast_bf16.value)
        return ((1.0, alone), (8.0, batch), (32.0, chunk), (math.inf, 1 / rate))


def unit_speed(
    rates: Rates,
    figures: Figures,
    *,
    is_shared: bool,
    num_threads: int,
    usable_cores: float | None,
    arithmetic: Arithmetic = Arithmetic.EXACT,
) -> UnitSpeed:
    """Return the speed of a unit that reports these rates and figures (``UnitReport``)."""
    decode = _believed(rates.decode_tokens_per_second, _RATES)
    prefill = _believed(rates.prefill_tokens_per_second, _RATES)
    read = _believed(figures.read_bytes_per_second, _READ_BYTES)
    int8 = _operations(figures.int8_operations_per_second)
    floats = _operations(figures.f32_operations_per_second)
    layer = _layer_seconds(decode, read, is_shared=is_shared)
    if decode is not None:
        seconds = max(1 / decode.value - TRIAL_LAYERS * layer.value, 0.5 / decode.value)
        effective = Estimate(value=TRIAL_BYTES / seconds, basis=decode.basis)
    elif read is not None:
        effective = Estimate(value=read.value * _share(read), basis=read.basis)
    else:
        effective = Estimate(value=ASSUMED_READ_BYTES_PER_SECOND, basis=Basis.ASSUMED)
    if prefill is not None:
        seconds = TRIAL_PREFILL_TOKENS / prefill.value - TRIAL_LAYERS * layer.value
        seconds = max(seconds, 0.5 * TRIAL_PREFILL_TOKENS / prefill.value)
        chunk = Estimate(value=TRIAL_PREFILL_TOKENS * TRIAL_WEIGHTS / seconds, basis=prefill.basis)
    elif int8 is not None:
        chunk = Estimate(value=int8.value * _share(int8), basis=int8.basis)
    else:
        chunk = Estimate(value=ASSUMED_MULTIPLY_ADDS_PER_SECOND, basis=Basis.ASSUMED)
    large = chunk
    if int8 is not None and int8.basis is Basis.MEASURED:
        large = Estimate(value=max(int8.value, chunk.value), basis=int8.basis)
    if floats is None:
        floats = Estimate(value=large.value / _FLOATS_SLOWER, basis=Basis.ASSUMED)
    fast = _operations(figures.fast_bf16_operations_per_second)
    return UnitSpeed(
        read=effective,
        batch=Estimate(value=_batch_slowdown(effective, chunk), basis=chunk.basis),
        chunk=chunk,
        large=large,
        floats=floats,
        fast_bf16=fast if arithmetic is not Arithmetic.EXACT else None,
        attention=Estimate(value=floats.value * _ATTENTION_SHARE, basis=floats.basis),
        layer_seconds=layer,
        step_seconds=Estimate(value=STEP_SECONDS, basis=layer.basis),
        usable_share=usable_share(num_threads, usable_cores),
    )


def usable_share(num_threads: int, usable_cores: float | None) -> float:
    """Return which part of their time ``num_threads`` threads get: at most 1, and never 0."""
    if usable_cores is None or not math.isfinite(usable_cores) or usable_cores <= 0:
        return 1.0
    return min(1.0, max(_USABLE_SHARE, usable_cores / max(1, num_threads)))


_WORST_LAST = (Basis.SERVED, Basis.MEASURED, Basis.TABLE, Basis.ASSUMED)


def worst(*bases: Basis) -> Basis:
    """Return what the least certain of several figures rests on."""
    return max(bases, key=_WORST_LAST.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relative:
    """Seconds per weight of a format over those of Q8_0: for 8 tokens, for 32, and for many."""

    batch: float
    chunk: float
    large: float


_LIKE_Q8_0 = _Relative(batch=1.0, chunk=1.0, large=1.0)
_RELATIVE: Mapping[TensorFormat, _Relative] = {
    # benchmarks/results/kernels.json and kernels-amx.json: medians over instruction sets
    TensorFormat.Q4_0: _Relative(batch=0.65, chunk=0.95, large=1.0),
    TensorFormat.Q4_1: _Relative(batch=0.7, chunk=1.0, large=1.1),
    TensorFormat.Q5_0: _Relative(batch=0.8, chunk=1.0, large=1.05),
    TensorFormat.Q5_1: _Relative(batch=0.85, chunk=1.05, large=1.15),
    TensorFormat.Q4_K: _Relative(batch=0.65, chunk=1.0, large=1.2),
    TensorFormat.Q5_K: _Relative(batch=0.8, chunk=1.1, large=1.3),
    TensorFormat.Q6_K: _Relative(batch=0.95, chunk=1.4, large=1.6),
    TensorFormat.F32: _Relative(batch=3.0, chunk=4.0, large=3.0),
    TensorFormat.F16: _Relative(batch=1.8, chunk=3.0, large=3.0),
    TensorFormat.BF16: _Relative(batch=1.8, chunk=3.0, large=3.0),
}
_FLOATS_SLOWER = 3.0
_ATTENTION_SHARE = 0.3
"""Multiply-adds with the cache per second, of those of float32 products."""


def _batch_slowdown(read: Estimate, chunk: Estimate) -> float:
    """Return how many times longer 8 tokens take than 1, from both ends of the curve."""
    alone = TRIAL_BYTES / read.value
    together = 8 * TRIAL_WEIGHTS / chunk.value
    return min(8.0, max(1.0, math.hypot(1.0, 1.5 * together / alone)))


def _layer_seconds(decode: Estimate | None, read: Estimate | None, *, is_shared: bool) -> Estimate:
    """Return what a layer takes besides reading, from the trial and the rate of reading alone."""
    if decode is None or read is None or read.basis is not Basis.MEASURED or is_shared:
        value = _SHARED_LAYER_SECONDS if is_shared else _OWN_LAYER_SECONDS
        basis = Basis.ASSUMED if decode is None else decode.basis
        if decode is not None:  # it is in there
            value = min(value, 0.5 / decode.value / TRIAL_LAYERS)
        return Estimate(value=value, basis=basis)
    rest = (1 / decode.value - TRIAL_BYTES / read.value) / TRIAL_LAYERS
    value = min(max(rest, _LEAST_LAYER_SECONDS), _MOST_LAYER_SECONDS)
    return Estimate(value=value, basis=decode.basis)


def _interpolated(curve: tuple[tuple[float, float], ...], num_tokens: float) -> float:
    """Return seconds per weight for a step of so many tokens: linear between points."""
    before = curve[0]
    for point in curve[1:-1]:
        if num_tokens <= point[0]:
            share = (num_tokens - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1] + (num_tokens - before[0]) * curve[-1][1]


def _believed(figure: Figure, bounds: tuple[float, float]) -> Estimate | None:
    """Return a reported figure if it may be true."""
    value = figure.value
    if figure.origin is Origin.UNKNOWN or value is None or not math.isfinite(value):
        return None
    least, most = bounds
    if not least <= value <= most:
        return None
    is_measured = figure.origin is Origin.MEASURED
    return Estimate(value=float(value), basis=Basis.MEASURED if is_measured else Basis.TABLE)


def _operations(figure: Figure) -> Estimate | None:
    """Return multiply-adds per second, which are half the operations."""
    found = _believed(figure, _OPERATIONS)
    return None if found is None else Estimate(value=found.value / 2, basis=found.basis)


def _share(figure: Estimate) -> float:
    return 1.0 if figure.basis is Basis.MEASURED else _TABLE_SHARE
