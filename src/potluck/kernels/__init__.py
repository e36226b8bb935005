"""The only package that imports the C++ core, ``_core``.

Importing it loads the compiled module and raises ``EngineError`` if there is none. It computes
nothing itself.
"""

from __future__ import annotations

from potluck.errors import EngineError

try:
    from potluck.kernels._core import (
        PANEL_LAYOUT,
        Kernels,
        Sha256State,
        available_isas,
        convert_rows,
        fast_formats,
        format_info,
        isa_problem,
        kernels_for,
        pack_rows,
        panel_bytes,
    )
except ImportError as error:
    raise EngineError(
        f"cannot load Potluck's compiled core: {error}",
        hint="install Potluck with pip, or build the core as described in CMakeLists.txt",
    ) from error

__all__ = [
    "PANEL_LAYOUT",
    "Kernels",
    "Sha256State",
    "available_isas",
    "convert_rows",
    "fast_formats",
    "format_info",
    "isa_problem",
    "kernels_for",
    "pack_rows",
    "panel_bytes",
    "runner",
]
