"""Sizes, rates and times as people write them: ``16 GiB``, ``25 GB/s``, ``0.3 ms``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from potluck.types.held_stage import MAX_BYTES

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_SIZE = re.compile(rf"{_NUMBER} *([kmgt]?)(?:i?b)?", re.IGNORECASE)
_BYTE_RATE = re.compile(rf"{_NUMBER} *([kMGT]?)(B|bit)/s")
_OPERATION_RATE = re.compile(rf"{_NUMBER} *([kMGT]?) *(?:op/s|ops/s|/s|FLOPS|FLOP/s|OPS)")
_TIME = re.compile(rf"{_NUMBER} *(us|µs|ms|s)")

_BINARY: Mapping[str, int] = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL: Mapping[str, float] = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS: Mapping[str, float] = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_MAX_DIGITS = 32


def parse_size(value: object) -> int:
    """Return the bytes of ``16 GiB``, ``900M`` or ``4096``; units are powers of 1024.

    Raise ``ValueError`` if it is not a size above 0, or exceeds that of any machine.
    """
    match = _match(_SIZE, value)
    size = int(_positive(float(match[1]) * _BINARY[match[2].lower()], least=1))
    if size > MAX_BYTES:
        raise ValueError("it is more than any machine has")
    return size


def parse_byte_rate(value: object) -> float:
    """Return the bytes per second of ``25 GB/s`` or ``1 Gbit/s``; units are powers of 1000.

    Raise ``ValueError`` if it is not a rate above 0.
    """
    match = _match(_BYTE_RATE, value)
    per_unit = 1.0 if match[3] == "B" else 1 / 8
    return _positive(float(match[1]) * _DECIMAL[match[2]] * per_unit)


def parse_operation_rate(value: object) -> float:
    """Return the operations per second of ``300 Gop/s`` or ``35 TFLOPS``.

    Raise ``ValueError`` if it is no rate above 0.
    """
    match = _match(_OPERATION_RATE, value)
    return _positive(float(match[1]) * _DECIMAL[match[2]])


def parse_seconds(value: object) -> float:
    """Return the seconds of ``0.3 ms``, ``250 us`` or ``1 s``. Raise ``ValueError`` otherwise."""
    match = _match(_TIME, value)
    return float(match[1]) * _SECONDS[match[2]]


def _match(pattern: re.Pattern[str], value: object) -> re.Match[str]:
    text = value.strip() if isinstance(value, str) else ""
    match = pattern.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    if match is None:
        raise ValueError("it has another form")
    return match


def _positive(number: float, *, least: float = 0.0) -> float:
    if not math.isfinite(number) or number <= 0 or number < least:
        raise ValueError("it is not above 0")
    return number
