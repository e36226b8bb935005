"""How fast a unit computes: from the rates of its trial, its device's specifications, or a cautious
guess.

Figures that a node reports about itself may be wrong and are never trusted: a figure that is not
finite, not positive or implausible counts as unknown. So every speed here is positive and finite.

A product of matrices with some tokens takes the time to read the weights once, and time for the
arithmetic of each further token. Reading takes equally long per byte in every format; the relative
cost of arithmetic in formats other than the trial's is in a table (``benchmarks/cost_model.py``
measures both).

All speeds are those of a unit whose threads run unthrottled. If a control group gives them less
time (``usable_share`` below 1), everything takes proportionally longer over many steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from potluck.types.arithmetic import Arithmetic
from potluck.types.hardware import (
    TRIAL_BYTES,
    TRIAL_LAYERS,
    TRIAL_PREFILL_TOKENS,
    TRIAL_WEIGHTS,
    Figure,
    Figures,
    Origin,
    Rates,
)
from potluck.types.placement import Basis, worst
from potluck.types.tensor import TensorFormat

_RATES = (1e-3, 1e7)
"""Plausible tokens per second of the trial: a board of 1 GHz has 2, a large GPU 10⁴."""
_READ_BYTES = (1e6, 1e14)
_OPERATIONS = (1e7, 1e16)

ASSUMED_READ_BYTES_PER_SECOND = 3e9
ASSUMED_MULTIPLY_ADDS_PER_SECOND = 10e9
"""For a unit of which nothing is known: the figures of a Raspberry Pi 4."""
_TABLE_SHARE = 0.4
"""The fraction that a backend reaches of a figure from a table or a derivation, which is a peak."""

_LEAST_LAYER_SECONDS, _MOST_LAYER_SECONDS = 10e-6, 20e-3
_SHARED_LAYER_SECONDS = 20e-6
"""Norms and other small ops of a layer, and the barriers of its threads: 15 µs with one thread
here.
"""
_OWN_LAYER_SECONDS = 400e-6
"""Assumed for a device with memory of its own: its driver starts some 18 kernels per layer."""
STEP_SECONDS = 20e-6
"""The fixed cost of a step in addition to its parts: handing over slices and waking threads."""
_SECONDS_PER_LOGIT = 3e-9
"""The cost of choosing the most likely token, or one of the 40 most likely. Sampling from the whole
vocabulary took 120 ns per logit when this was measured."""
_SECONDS_PER_EMBEDDED_VALUE = 1.3e-9

_REFERENCE_READ_BYTES, _MOST_SLOWNESS = 16e9, 50.0
"""The reading rate of the machine on which the seconds above were measured. A CPU that reads more
slowly is assumed to be proportionally slower at them: a Raspberry Pi 4 is five to six times slower
at either."""

_SHARE_LEAST = 0.001
"""The least usable share: a quota of a thousandth of what the threads could use."""

QUOTA_PERIOD_SECONDS = 0.1
"""The default quota period of control groups: threads run at full speed until they have used up
their part of it."""
_PERIODS = (1e-3, 1.0)
"""The range that Linux allows (``scheduler/sched-bwc.rst``)."""

_CACHED_BYTES, _UNCACHED_BYTES = 1.25 * TRIAL_BYTES, 2 * TRIAL_BYTES
"""Up to the first size, weights are assumed to be read as fast as the trial's, from the second on
as fast as memory that exceeds every cache. A server's last-level cache may hold the trial's weights
but not the model's: 25 GB/s and 16 GB/s here, with no values in between beyond 190 MB."""

_INT8_TIMES = 1.8
"""An instruction set that multiplies int8 this many times faster than float32 has instructions for
it (VNNI, AMX, dotprod); others convert first, and are as fast as float32."""
_BEYOND_CHUNK = 1.05
_FLOATS_SLOWER = 3.0
_DECODE_ATTENTION, _PREFILL_ATTENTION = 0.55, 0.65
"""Multiply-adds with the cache per second, relative to those of float32 products."""
_STATE_OPS = 0.85
"""Multiply-adds with states per second, relative to those of float32 products: 0.8 to 0.9 with
AVX-512 and 0.8 to 1.0 with AVX2, for the gated delta rule and the scan of Mamba-2, with one thread.
Short convolutions take longer, but there are few of them."""
_UNPACKING = 1.05
"""The cost of the fast arithmetic's conversion of quantized weights to bf16, relative to a chunk's
arithmetic.
"""
_LEAST_REST = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A positive, finite number, and its basis."""

    value: float
    basis: Basis


@dataclass(frozen=True, kw_only=True)
class UnitSpeed:
    """How fast one unit computes.

    ``read`` is the bytes of weights per second while one token is decoded, for models as small as
    the trial's, and ``read_large`` for larger models. ``chunk`` is the multiply-adds per second
    with weights in the trial's format for 32 tokens, ``floats`` those in float32, and ``fast_bf16``
    those in bf16 in a fast arithmetic; None in the exact one. ``has_int8`` says which formats are
    faster. ``attention`` and ``prefill_attention`` are multiply-adds with the cache per second, and
    ``states`` those with the states of sequences. ``layer_seconds`` and ``step_seconds`` are fixed
    costs, ``seconds_per_logit`` applies to each entry of the vocabulary from which a token is
    chosen, and ``seconds_per_embedded_value`` to each value of a token's row. ``usable_share`` is
    the part of its threads' time that the unit gets, which a control group renews once every
    ``quota_period_seconds``.
    """

    read: Estimate
    read_large: Estimate
    chunk: Estimate
    floats: Estimate
    fast_bf16: Estimate | None
    has_int8: bool
    attention: Estimate
    prefill_attention: Estimate
    states: Estimate
    layer_seconds: Estimate
    step_seconds: Estimate
    seconds_per_logit: float
    seconds_per_embedded_value: float
    usable_share: float = 1.0
    quota_period_seconds: float = QUOTA_PERIOD_SECONDS

    @property
    def slowness(self) -> float:
        """Return how many times slower than the reference machine it is at small operations."""
        return self.step_seconds.value / STEP_SECONDS

    @property
    def decode_basis(self) -> Basis:
        """Return the basis of a prediction of decoding."""
        return worst(self.read.basis, self.read_large.basis)

    @property
    def prefill_basis(self) -> Basis:
        """Return the basis of a prediction of prefill."""
        return worst(self.chunk.basis, self.read.basis)

    def read_bytes_per_second(self, model_bytes: float) -> float:
        """Return how fast weights of a model with this many bytes are read."""
        share = (model_bytes - _CACHED_BYTES) / (_UNCACHED_BYTES - _CACHED_BYTES)
        share = min(1.0, max(0.0, share))
        return 1 / ((1 - share) / self.read.value + share / self.read_large.value)

    def arithmetic_seconds(
        self, format: TensorFormat, num_tokens: float, *, is_prompt: bool
    ) -> float:
        """Return the seconds per weight of ``format`` for ``num_tokens`` in addition to reading it.

        ``is_prompt``: they are of one sequence.
        """
        if num_tokens <= 1:
            return 0.0
        of_chunk, curve = self._curve(format)
        if self.fast_bf16 is not None:
            if format is TensorFormat.BF16:
                return num_tokens / self.fast_bf16.value
            if format.is_quantized and is_prompt:
                return _UNPACKING * of_chunk + num_tokens / self.fast_bf16.value
        beyond = num_tokens - TRIAL_PREFILL_TOKENS
        if beyond <= 0:
            return interpolated(curve, num_tokens)
        return of_chunk * (1 + _BEYOND_CHUNK * beyond / TRIAL_PREFILL_TOKENS)

    def _curve(self, format: TensorFormat) -> tuple[float, tuple[tuple[float, float], ...]]:
        """Return the arithmetic of a chunk, and that of fewer tokens by their number."""
        found = self._curves.get(format)
        if found is None:
            found = self._curves[format] = self._made_curve(format)
        return found

    @cached_property
    def _curves(self) -> dict[TensorFormat, tuple[float, tuple[tuple[float, float], ...]]]:
        return {}

    def _made_curve(self, format: TensorFormat) -> tuple[float, tuple[tuple[float, float], ...]]:
        if format.is_quantized:
            relative = (_WITH_INT8 if self.has_int8 else _WITHOUT_INT8).get(format, _LIKE_Q8_0)
            q8_0 = TRIAL_PREFILL_TOKENS / self.chunk.value
            batch = q8_0 * relative.batch * (_WITH_BATCH if self.has_int8 else _WITHOUT_BATCH)
            of_chunk = q8_0 * relative.chunk
        else:
            relative = _FLOATS.get(format, _LIKE_FLOATS)
            batch = 8 / self.floats.value * relative.batch
            of_chunk = TRIAL_PREFILL_TOKENS / self.floats.value * relative.chunk
        of_chunk = max(of_chunk, batch)
        chunk_at = float(TRIAL_PREFILL_TOKENS)
        few = ((1.0, 0.0), (2.0, 0.05 * batch), (4.0, 0.2 * batch), (8.0, batch))
        return of_chunk, (*few, (chunk_at, of_chunk))


def interpolated(points: Iterable[tuple[float, float]], x: float) -> float:
    """Return the value at ``x`` on the line through ``points``; beyond its ends, that of the end.

    There are one or more points, in order.
    """
    before: tuple[float, float] | None = None
    for point in points:
        if x <= point[0]:
            if before is None:
                return point[1]
            share = (x - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    if before is None:
        raise ValueError("there are no points")
    return before[1]


def unit_speed(
    rates: Rates,
    figures: Figures,
    *,
    is_shared: bool,
    usable_share: float = 1.0,
    quota_period_seconds: float | None = None,
    arithmetic: Arithmetic = Arithmetic.EXACT,
) -> UnitSpeed:
    """Return the speed of a unit that reports these rates and figures (``UnitReport``).

    ``is_shared``: it uses host memory.
    """
    decode = _plausible(rates.decode_tokens_per_second, _RATES)
    prefill = _plausible(rates.prefill_tokens_per_second, _RATES)
    read = _plausible(figures.read_bytes_per_second, _READ_BYTES)
    int8 = multiply_adds(figures.int8_operations_per_second)
    floats = multiply_adds(figures.f32_operations_per_second)
    layer = _layer_seconds(decode, read, is_shared=is_shared)
    small = _read(decode, read, layer)
    large = small
    if read is not None and read.basis is Basis.MEASURED:
        large = Estimate(value=min(read.value, small.value), basis=small.basis)
    slowness = min(_MOST_SLOWNESS, max(1.0, _REFERENCE_READ_BYTES / large.value))
    chunk = _chunk(decode, prefill, int8)
    has_int8 = int8 is None or floats is None or int8.value > _INT8_TIMES * floats.value
    if floats is None:
        floats = Estimate(value=chunk.value / _FLOATS_SLOWER, basis=chunk.basis)
    fast = multiply_adds(figures.fast_bf16_operations_per_second)
    return UnitSpeed(
        read=small,
        read_large=large,
        chunk=chunk,
        floats=floats,
        fast_bf16=fast if arithmetic is not Arithmetic.EXACT else None,
        has_int8=has_int8,
        attention=Estimate(value=floats.value * _DECODE_ATTENTION, basis=floats.basis),
        prefill_attention=Estimate(value=floats.value * _PREFILL_ATTENTION, basis=floats.basis),
        states=Estimate(value=floats.value * _STATE_OPS, basis=floats.basis),
        layer_seconds=layer,
        step_seconds=Estimate(value=STEP_SECONDS * slowness, basis=layer.basis),
        seconds_per_logit=_SECONDS_PER_LOGIT * slowness,
        seconds_per_embedded_value=_SECONDS_PER_EMBEDDED_VALUE * slowness,
        usable_share=_time_share(usable_share),
        quota_period_seconds=_period(quota_period_seconds),
    )


def _time_share(reported: float) -> float:
    """Return which part of their time a unit's threads get: at most 1, and never 0."""
    if not math.isfinite(reported) or reported <= 0:
        return 1.0
    return min(1.0, max(_SHARE_LEAST, reported))


def _period(seconds: float | None) -> float:
    if seconds is None or not _PERIODS[0] <= seconds <= _PERIODS[1]:
        return QUOTA_PERIOD_SECONDS
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relative:
    """Arithmetic of a weight of a format relative to that of another: for 8 tokens, and for 32."""

    batch: float
    chunk: float


# Medians over instruction sets of the additional time of 8 and 32 tokens compared with one, with
# one thread (benchmarks/results/cost_model.json).
_LIKE_Q8_0 = _Relative(batch=1.0, chunk=1.0)
_WITH_BATCH, _WITHOUT_BATCH = 0.33, 0.23
"""In Q8_0: the arithmetic of 8 tokens relative to that of 32."""
_WITH_INT8: Mapping[TensorFormat, _Relative] = {
    TensorFormat.Q4_0: _Relative(batch=0.68, chunk=0.93),
    TensorFormat.Q4_1: _Relative(batch=0.75, chunk=1.0),
    TensorFormat.Q5_0: _Relative(batch=0.9, chunk=1.0),
    TensorFormat.Q5_1: _Relative(batch=1.0, chunk=1.1),
    TensorFormat.Q4_K: _Relative(batch=0.92, chunk=1.13),
    TensorFormat.Q5_K: _Relative(batch=1.35, chunk=1.28),
    TensorFormat.Q6_K: _Relative(batch=1.5, chunk=1.65),
    # Not among those medians: derived from the format with the same kernel, plus the conversion of
    # half-precision scales.
    TensorFormat.Q2_K: _Relative(batch=1.5, chunk=1.65),
    TensorFormat.Q3_K: _Relative(batch=1.5, chunk=1.65),
    TensorFormat.IQ4_NL: _Relative(batch=0.9, chunk=1.0),
    TensorFormat.IQ4_XS: _Relative(batch=0.95, chunk=1.05),
    TensorFormat.MXFP4: _Relative(batch=0.9, chunk=1.0),
}
_WITHOUT_INT8: Mapping[TensorFormat, _Relative] = {
    TensorFormat.Q4_0: _Relative(batch=0.63, chunk=0.7),
    TensorFormat.Q4_1: _Relative(batch=0.65, chunk=0.72),
    TensorFormat.Q5_0: _Relative(batch=0.65, chunk=0.75),
    TensorFormat.Q5_1: _Relative(batch=0.7, chunk=0.8),
    TensorFormat.Q4_K: _Relative(batch=0.73, chunk=0.84),
    TensorFormat.Q5_K: _Relative(batch=0.76, chunk=0.89),
    TensorFormat.Q6_K: _Relative(batch=1.14, chunk=1.22),
    TensorFormat.Q2_K: _Relative(batch=1.14, chunk=1.22),
    TensorFormat.Q3_K: _Relative(batch=1.14, chunk=1.22),
}
_LIKE_FLOATS = _Relative(batch=1.1, chunk=1.17)
"""Relative to the multiply-adds of float32 as measured with 128 tokens."""
_FLOATS: Mapping[TensorFormat, _Relative] = {
    TensorFormat.F32: _Relative(batch=1.4, chunk=1.15),
}


def _read(decode: Estimate | None, read: Estimate | None, layer: Estimate) -> Estimate:
    """Return bytes of weights per second for a model as small as the trial's."""
    if decode is not None:
        rest = 1 / decode.value - TRIAL_LAYERS * layer.value
        seconds = max(rest, _LEAST_REST / decode.value)
        return Estimate(value=TRIAL_BYTES / seconds, basis=decode.basis)
    if read is not None:
        return Estimate(value=read.value * _share(read), basis=read.basis)
    return Estimate(value=ASSUMED_READ_BYTES_PER_SECOND, basis=Basis.ASSUMED)


def _chunk(decode: Estimate | None, prefill: Estimate | None, int8: Estimate | None) -> Estimate:
    """Return multiply-adds per second for 32 tokens, in the trial's format."""
    if prefill is not None:
        seconds = TRIAL_PREFILL_TOKENS / prefill.value
        rest = seconds if decode is None else seconds - 1 / decode.value
        rest = max(rest, _LEAST_REST * seconds)
        return Estimate(value=TRIAL_PREFILL_TOKENS * TRIAL_WEIGHTS / rest, basis=prefill.basis)
    if int8 is not None:
        return Estimate(value=int8.value * _share(int8), basis=int8.basis)
    return Estimate(value=ASSUMED_MULTIPLY_ADDS_PER_SECOND, basis=Basis.ASSUMED)


def _layer_seconds(decode: Estimate | None, read: Estimate | None, *, is_shared: bool) -> Estimate:
    """Return the seconds per layer in addition to reading.

    For a device with memory of its own, this is the difference between the trial and the rate of
    reading alone.
    """
    usual = _SHARED_LAYER_SECONDS if is_shared else _OWN_LAYER_SECONDS
    if decode is None:
        return Estimate(value=usual, basis=Basis.ASSUMED)
    most = (1 - _LEAST_REST) / decode.value / TRIAL_LAYERS  # included in the trial
    if is_shared or read is None or read.basis is not Basis.MEASURED:
        return Estimate(value=min(usual, most), basis=decode.basis)
    rest = (1 / decode.value - TRIAL_BYTES / read.value) / TRIAL_LAYERS
    value = min(max(rest, _LEAST_LAYER_SECONDS), _MOST_LAYER_SECONDS, most)
    return Estimate(value=value, basis=decode.basis)


def _plausible(figure: Figure, bounds: tuple[float, float]) -> Estimate | None:
    """Return a reported figure if it is plausible."""
    value = figure.value
    if figure.origin is Origin.UNKNOWN or value is None or not math.isfinite(value):
        return None
    least, most = bounds
    if not least <= value <= most:
        return None
    is_measured = figure.origin is Origin.MEASURED
    return Estimate(value=float(value), basis=Basis.MEASURED if is_measured else Basis.TABLE)


def multiply_adds(figure: Figure) -> Estimate | None:
    """Return multiply-adds per second, half the operations, if the reported figure is plausible."""
    found = _plausible(figure, _OPERATIONS)
    return None if found is None else Estimate(value=found.value / 2, basis=found.basis)


def _share(figure: Estimate) -> float:
    return 1.0 if figure.basis is Basis.MEASURED else _TABLE_SHARE
