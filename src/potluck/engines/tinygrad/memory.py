"""Buffers on a device that are filled piece by piece, without additional host memory."""

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
    check_cuda,
    check_opencl,
    cuda,
    dtypes,
    opencl,
    tinygrad_errors,
)
from potluck.engines.tinygrad.kernels import (
    LOOPS,
    THREADS,
    VECTORS,
    Launch,
    for_units,
    narrowed,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Plane:
    """A buffer at a fixed address on a device, written sequentially."""

    def __init__(self, device: str, dtype: Any, *shape: int) -> None:
        with tinygrad_errors():
            self._buffer = Buffer(device, int(np.prod(shape)), dtype, preallocate=True)
            self.tensor = Tensor(UOp.from_buffer(self._buffer)).reshape(*shape)
        self._written_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Size on the device."""
        size: int = self._buffer.nbytes
        return size

    def append(self, values: NDArray[Any]) -> None:
        """Append contiguous ``values``, which the caller may then free."""
        data = values.reshape(-1).view(np.uint8)
        with tinygrad_errors():
            _copy(self._buffer, self._written_bytes, data)
        self._written_bytes += data.nbytes


def launch_for(device: str) -> Launch:
    """Open a device, and return how to distribute kernels over it.

    Kernels for CPUs that are compiled afterwards load numbers one by one. How many units a device
    has is known for OpenCL and CUDA.
    """
    with tinygrad_errors():
        opened = Device[device]
        has_groups = opened.renderer.has_local
        is_cpu, launch = not has_groups, THREADS
        if has_groups and _is_opencl(device):
            kind = _opencl_info(opened, opencl.CL_DEVICE_TYPE)
            is_cpu = bool(kind & opencl.CL_DEVICE_TYPE_CPU)
            max_group = _opencl_info(opened, opencl.CL_DEVICE_MAX_WORK_GROUP_SIZE)
            num_units = _opencl_info(opened, opencl.CL_DEVICE_MAX_COMPUTE_UNITS)
            launch = for_units(narrowed(THREADS, max_group), num_units)
        elif has_groups and device.split(":")[0] == "CUDA":
            launch = for_units(THREADS, _num_multiprocessors(opened))
        if is_cpu:
            # Compilers for CPUs make the widest vectors from scalar loads, and use only vectors of
            # four if the source has these: 5.6 GB/s against 2.9 for Q4_0 with AVX2.
            opened.renderer.supports_float4 = False
            return VECTORS if has_groups else LOOPS
    return launch


def release_memory(device: str) -> None:
    """Release the memory of freed buffers that tinygrad keeps for reuse."""
    gc.collect()  # tinygrad's expressions contain reference cycles
    free_cache = getattr(Device[device].allocator, "free_cache", None)
    if free_cache is not None:
        free_cache()


def _copy(buffer: Buffer, offset_bytes: int, data: NDArray[np.uint8]) -> None:
    """Copy into part of a buffer and wait, so that no copies are pending in host memory."""
    if _is_opencl(buffer.device):
        # tinygrad cannot address part of an OpenCL buffer; OpenCL can.
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
    """Return a property of an OpenCL device of at most 64 bits."""
    value = ctypes.c_uint64()
    check_opencl(opencl.clGetDeviceInfo(device.cl_dev, what, 8, ctypes.byref(value), None))
    return value.value


def _num_multiprocessors(device: Any) -> int:
    value = ctypes.c_int()
    attribute = cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    check_cuda(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device.cu_device))
    return value.value
