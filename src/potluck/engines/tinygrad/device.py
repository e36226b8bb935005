"""The device of this process: its capabilities, and copies to and from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.engines.tinygrad.adapter import Device, Tensor, dtypes, tinygrad_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """A device, by tinygrad's name for it.

    ``has_f16``: it supports float16 arithmetic and storage. ``has_parts``: tinygrad can pass
    kernels a part of a buffer.
    """

    name: str
    has_f16: bool
    has_parts: bool


def open_device(name: str | None = None) -> OpenDevice:
    """Open the device that ``DEV`` names, or one of several of its kind (``CL:1``).

    Raises ``UnitFaultError`` if the driver fails, and ``EngineError`` if there is no compiler.
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
    """Allocate a buffer of zeros on the device; its address is fixed while the tensor exists."""
    with tinygrad_errors():
        return Tensor.zeros(*shape, dtype=dtype, device=device.name).contiguous().realize()


def write(tensor: Tensor, values: NDArray[Any]) -> None:
    """Copy ``values`` to the beginning of a realized tensor's buffer.

    The copy may complete after this returns: ``values`` is kept alive and must not be changed.
    """
    buffer = tensor.uop.base.realized
    buffer.allocator._copyin(buffer._buf, np.ascontiguousarray(values).data.cast("B"))


def read(tensor: Tensor, out: NDArray[Any]) -> None:
    """Copy the beginning of a realized tensor's buffer to ``out``, after all preceding work."""
    buffer = tensor.uop.base.realized
    buffer.allocator._copyout(out.data.cast("B"), buffer._buf)
