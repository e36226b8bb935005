"""The one device of this process, opened; what it can do, and bytes to and from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.engines.tinygrad.adapter import Device, Tensor, dtypes, tinygrad_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """A device by tinygrad's name for it.

    ``has_f16``: it computes in, and stores, float16. ``has_parts``: tinygrad can give kernels a
    part of a buffer.
    """

    name: str
    has_f16: bool
    has_parts: bool


def open_device(name: str | None = None) -> OpenDevice:
    """Open the device that ``DEV`` names, or one of several of its kind (``CL:1``).

    Raises ``UnitFaultError`` when the driver refuses, ``EngineError`` without a compiler.
    """
    with tinygrad_errors():
        name = Device.canonicalize(name)
        renderer = Device[name].renderer
        return OpenDevice(
            name=name,
            has_f16=dtypes.half in renderer.supported_dtypes(),
            has_parts=not name.startswith("CL"),
        )


def new_tensor(device: OpenDevice, dtype: Any, *shape: int) -> Tensor:
    """A buffer of zeros on the device, which keeps its place as long as the tensor lives."""
    with tinygrad_errors():
        return Tensor.zeros(*shape, dtype=dtype, device=device.name).contiguous().realize()


def write(tensor: Tensor, values: NDArray[Any]) -> None:
    """Copy ``values`` to the beginning of a realized tensor's buffer.

    It may be done after this returns: ``values`` is kept alive and must not be changed.
    """
    buffer = tensor.uop.base.realized
    buffer.allocator._copyin(buffer._buf, np.ascontiguousarray(values).data.cast("B"))


def read(tensor: Tensor, out: NDArray[Any]) -> None:
    """Copy the beginning of a realized tensor's buffer to ``out``, when all before it is done."""
    buffer = tensor.uop.base.realized
    buffer.allocator._copyout(out.data.cast("B"), buffer._buf)
