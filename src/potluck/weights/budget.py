"""Whether a model fits, decided before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.errors import InsufficientMemoryError
from potluck.quantities import format_bytes
from potluck.types.memory import MemoryLimit
from potluck.types.program import Program
from potluck.types.tensor import TensorSource
from potluck.weights.load import check_weights


def weights_bytes(program: Program, source: TensorSource, *, path: str = "the model") -> int:
    """Bytes of all tensors that ``program`` reads, as they are stored.

    A head tied to the embedding is the same tensor and counts once. Raises as ``check_weights``.
    """
    return sum(info.num_bytes for info in check_weights(program, source, path=path))


def require_memory(needed_bytes: Mapping[str, int], available: MemoryLimit) -> None:
    """Raise ``InsufficientMemoryError`` unless the items together fit into ``available``.

    ``needed_bytes`` are sizes by what they are for ("weights", "cache", "scratch").
    """
    total = sum(needed_bytes.values())
    if total <= available.bytes:
        return
    items = ", ".join(f"{name} {format_bytes(size)}" for name, size in needed_bytes.items())
    raise InsufficientMemoryError(
        total,
        available.bytes,
        f"{format_bytes(total)} of memory are needed ({items}), and "
        f"{format_bytes(available.bytes)} may be used ({available.reason})",
        hint="give a smaller --context, or choose a more strongly quantized file of the model",
    )
