"""Buffers on a device that are filled piece by piece, and nothing more held for it."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.engines.tinygrad.adapter import (
    Buffer,
    Device,
    Tensor,
    UOp,
    check_opencl,
    dtypes,
    opencl,
    tinygrad_errors,
)
from potluck.engines.tinygrad.kernels import LOOPS, THREADS, VECTORS, Launch, narrowed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Plane:
    """A buffer of a fixed place on a device, written from its beginning on."""

    def __init__(self, device: str, dtype: Any, *shape: int) -> None:
        with tinygrad_errors():
            self._buffer = Buffer(device, int(np.prod(shape)), dtype, preallocate=True)
            self.tensor = Tensor(UOp.from_buffer(self._buffer)).reshape(*shape)
        self._written_bytes = 0

    @property
    def num_bytes(self) -> int:
        """On the device."""
        size: int = self._buffer.nbytes
        return size

    def append(self, values: NDArray[Any]) -> None:
        """Copy contiguous ``values`` behind what was written. They are not needed afterwards."""
        data = values.reshape(-1).view(np.uint8)
        with tinygrad_errors():
            _copy(self._buffer, self._written_bytes, data)
        self._written_bytes += data.nbytes


def launch_for(device: str) -> Launch:
    """Open a device, and say how kernels are to be spread over it.

    Kernels for CPUs that are compiled afterwards load numbers one by one.
    """
    with tinygrad_errors():
        opened = Device[device]
        has_groups = opened.renderer.has_local
        is_cpu, max_group = not has_groups, None
        if has_groups and _is_opencl(device):
            kind = _opencl_info(opened, opencl.CL_DEVICE_TYPE)
            is_cpu = bool(kind & opencl.CL_DEVICE_TYPE_CPU)
            max_group = _opencl_info(opened, opencl.CL_DEVICE_MAX_WORK_GROUP_SIZE)
        if is_cpu:
            # Compilers for CPUs make the widest vectors of single numbers, and keep to four where
            # the source has vectors of four: 5.6 GB/s against 2.9 for Q4_0 with AVX2.
            opened.renderer.supports_float4 = False
            return VECTORS if has_groups else LOOPS
    return THREADS if max_group is None else narrowed(THREADS, max_group)


def release_memory(device: str) -> None:
    """Give back what freed buffers have left with tinygrad for buffers to come."""
    gc.collect()  # tinygrad's expressions refer to one another
    free_cache = getattr(Device[device].allocator, "free_cache", None)
    if free_cache is not None:
        free_cache()


def _copy(buffer: Buffer, offset_bytes: int, data: NDArray[np.uint8]) -> None:
    """Into a part of a buffer; done when it returns, so that no copies wait in host memory."""
    if _is_opencl(buffer.device):
        # tinygrad cannot name a part of an OpenCL buffer; OpenCL can.
        queue = Device[buffer.device].queue
        address = ctypes.c_void_p(data.ctypes.data)
        check_opencl(
            opencl.clEnqueueWriteBuffer(
                queue, buffer._buf, True, offset_bytes, data.nbytes, address, 0, None, None
            )
        )
        return
    part = buffer.view(data.nbytes, dtypes.uint8, offset_bytes).ensure_allocated()
    part.copy_from(Buffer("PYTHON", data.nbytes, dtypes.uint8, opaque=data.data))
    Device[buffer.device].synchronize()


def _is_opencl(device: str) -> bool:
    return device.split(":")[0] == "CL"


def _opencl_info(device: Any, what: int) -> int:
    """A number that an OpenCL device says about itself; all that are asked for have 64 bits."""
    value = ctypes.c_uint64()
    check_opencl(opencl.clGetDeviceInfo(device.cl_dev, what, 8, ctypes.byref(value), None))
    return value.value
