"""The one door to the C++ core.

Nothing else imports ``_core``. Importing this package loads the compiled module and raises
``EngineError`` where there is none. It computes nothing itself.
"""

from __future__ import annotations

from potluck.errors import EngineError

try:
    from potluck.kernels._core import (
        PANEL_LAYOUT,
        Kernels,
        available_isas,
        convert_rows,
        fast_formats,
        format_info,
        kernels_for,
        pack_rows,
        panel_bytes,
    )
except ImportError as error:
    raise EngineError(
        f"the compiled core of Potluck cannot be loaded: {error}",
        hint="install Potluck with pip, or build the core as CMakeLists.txt says",
    ) from error

__all__ = [
    "PANEL_LAYOUT",
    "Kernels",
    "available_isas",
    "convert_rows",
    "fast_formats",
    "format_info",
    "kernels_for",
    "pack_rows",
    "panel_bytes",
]
