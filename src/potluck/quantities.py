"""Sizes and rates as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(num_bytes: int) -> str:
    """``1536`` → ``1.5 KiB``; three significant digits, binary units."""
    size = float(num_bytes)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} {_UNITS[-1]}"


def format_seconds(seconds: float) -> str:
    """``0.0042`` → ``4.2 ms``, ``1.5`` → ``1.5 s``, ``95`` → ``1 min 35 s``."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
