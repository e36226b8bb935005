"""Sizes, times and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(num_bytes: int) -> str:
    """``1536`` → ``1.5 KiB``: about three significant digits, binary units."""
    size = float(num_bytes)
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{format_number(size)} {_UNITS[unit]}"


def format_rate(per_second: float, unit: str) -> str:
    """``1.5e9, "B/s"`` → ``1.5 GB/s``: about three significant digits, decimal units."""
    prefixes = iter(("", "k", "M", "G", "T"))
    prefix = next(prefixes)
    while per_second >= 1000 and prefix != "T":
        per_second /= 1000
        prefix = next(prefixes)
    return f"{format_number(per_second)} {prefix}{unit}"


def format_seconds(seconds: float) -> str:
    """``0.0042`` → ``4.2 ms``, ``1.5`` → ``1.5 s``, ``95`` → ``1 min 35 s``."""
    if seconds < 1:
        return f"{format_number(seconds * 1000)} ms"
    if seconds < 60:
        return f"{format_number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def format_number(value: float) -> str:
    """``0.1234`` → ``0.123``, ``1234.5`` → ``1234``: at least three digits, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def format_count(count: int, noun: str) -> str:
    """``1, "stage"`` → ``1 stage``, ``3, "stage"`` → ``3 stages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_percent(part: float) -> str:
    """``0.0123`` → ``1.2 %``, ``0.353`` → ``35 %``: two significant digits below 10 %."""
    return f"{part * 100:.2g} %" if part < 0.1 else f"{part * 100:.0f} %"


def format_few(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` names and the number of the others: ``a, b and 3 more``."""
    shown = ", ".join(names[:most])
    others = len(names) - most
    return f"{shown} and {others} more" if others > 0 else shown
