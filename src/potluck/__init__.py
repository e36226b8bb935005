"""Potluck: one language model over whatever machines are on the table.

import potluck

with potluck.Model.open("demo") as model:
    for piece in model.generate("Once upon a time", max_tokens=60):
        print(piece.text, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.host.uname import replace_denied_uname
from potluck.version import __version__

replace_denied_uname()  # before any module is imported that asks it

if TYPE_CHECKING:
    from potluck.capabilities import device_capabilities
    from potluck.errors import PotluckError
    from potluck.local import (
        DocumentScore,
        Embeddings,
        Generation,
        GenerationResult,
        Model,
        Piece,
        Scores,
        TokenScore,
    )
    from potluck.types.capabilities import DeviceCapabilities
    from potluck.types.choices import ArithmeticChoice, Quantization
    from potluck.types.step import SamplingParams
    from potluck.types.text import ChatMessage, Tool, ToolCall

_EXPORTS = {
    "ArithmeticChoice": "potluck.types.arithmetic",
    "ChatMessage": "potluck.types.text",
    "DeviceCapabilities": "potluck.types.capabilities",
    "DocumentScore": "potluck.local",
    "Embeddings": "potluck.local",
    "Generation": "potluck.local",
    "GenerationResult": "potluck.local",
    "Model": "potluck.local",
    "Piece": "potluck.local",
    "PotluckError": "potluck.errors",
    "Quantization": "potluck.types.choices",
    "SamplingParams": "potluck.types.step",
    "Scores": "potluck.local",
    "TokenScore": "potluck.local",
    "Tool": "potluck.types.text",
    "ToolCall": "potluck.types.text",
    "device_capabilities": "potluck.capabilities",
}

__all__ = [
    "ArithmeticChoice",
    "ChatMessage",
    "DeviceCapabilities",
    "DocumentScore",
    "Embeddings",
    "Generation",
    "GenerationResult",
    "Model",
    "Piece",
    "PotluckError",
    "Quantization",
    "SamplingParams",
    "Scores",
    "TokenScore",
    "Tool",
    "ToolCall",
    "__version__",
    "device_capabilities",
]


def __getattr__(name: str) -> object:
    """Import what is asked for, so that ``import potluck`` alone stays light (PEP 562)."""
    import importlib
    import sys

    from potluck.host.cpu_baseline import require_supported_cpu

    if name not in _EXPORTS:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    if "numpy" not in sys.modules:
        require_supported_cpu()
    return getattr(importlib.import_module(_EXPORTS[name]), name)
