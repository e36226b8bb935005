"""The one door to the C++ core.

Nothing else imports ``_core``. Importing this package loads the compiled module and raises
``EngineError`` where there is none. It computes nothing itself.
"""

from __future__ import annotations

from potluck.errors import EngineError, ParameterError

try:
    from potluck.kernels import _core
except ImportError as error:
    raise EngineError(
        f"the compiled core of Potluck cannot be loaded: {error}",
        hint="install Potluck with pip, or build the core as CMakeLists.txt says",
    ) from error

from potluck.kernels._core import (
    Kernels,
    available_isas,
    format_info,
    kernels_for,
    pack_rows,
    panel_bytes,
)

__all__ = [
    "Kernels",
    "available_isas",
    "format_info",
    "kernels_for",
    "pack_rows",
    "panel_bytes",
    "selected_isa",
]


def selected_isa() -> str:
    """The instruction set to use: what ``POTLUCK_ISA`` names, else the fastest that runs here.

    Raises ``ParameterError`` if the variable names one that this build or CPU does not have.
    """
    try:
        return _core.selected_isa()
    except ValueError as error:
        raise ParameterError(
            "POTLUCK_ISA", str(error), hint="set POTLUCK_ISA to one of them, or unset it"
        ) from error
