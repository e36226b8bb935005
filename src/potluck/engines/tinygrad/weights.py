"""Weights on a device: matrices packed as stored, vectors as float32."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.engines.dequantize import dequantize
from potluck.engines.step_checks import check_begin, check_rows, check_whole, weights_refused
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
from potluck.engines.tinygrad.formats import f16_bits_to_float, f16_to_float
from potluck.engines.tinygrad.kernels import (
    LOOPS,
    THREADS,
    VECTORS,
    Launch,
    for_units,
    linear_kernel,
    narrowed,
    rows_kernel,
)
from potluck.engines.tinygrad.layout import PANEL_ROWS, MatrixLayout, arrange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.engines.tinygrad.formats import ToFloat
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo


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


class DeviceMatrix:
    """A packed matrix ``[rows, columns]``."""

    def __init__(
        self, device: str, layout: MatrixLayout, launch: Launch, to_float: ToFloat
    ) -> None:
        self._device = device
        self._layout = layout
        self._launch = launch
        self._to_float = to_float
        self._words = Plane(device, dtypes.uint32, *layout.words_shape)
        halves = layout.halves_shape
        self._halves = None if halves is None else Plane(device, dtypes.uint16, *halves)

    @property
    def num_bytes(self) -> int:
        """Size on the device."""
        return self._words.num_bytes + (self._halves.num_bytes if self._halves else 0)

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """Words, uint32 ``[panels, words, 16]``, and halves, uint16, if the format has them."""
        return self._words.tensor, *([self._halves.tensor] if self._halves else [])

    def append(self, stored: NDArray[np.uint8]) -> None:
        """Append rows: whole panels, or the last one.

        ``stored`` is uint8 ``[rows, row_bytes]``, and is not kept.
        """
        words, halves = arrange(stored, self._layout)
        self._words.append(words)
        if self._halves:
            self._halves.append(halves)

    def linear(self, x: Tensor) -> Tensor:
        """Return ``x @ weight.T``: float32 ``[T, rows]`` for float32 ``[T, columns]``."""
        num_tokens, layout = x.shape[0], self._layout
        if num_missing := layout.padded_columns - layout.info.num_columns:
            x = x.pad(((0, 0), (0, num_missing)))
        out = Tensor.empty(
            num_tokens, layout.num_panels, PANEL_ROWS, dtype=dtypes.float32, device=self._device
        )
        # The column of a single token is also its row: no transposition is needed.
        columns = x.reshape(-1, 1) if num_tokens == 1 else x.T
        kernel = linear_kernel(layout, num_tokens, self._launch, self._to_float)
        out = out.custom_kernel(*self.planes, columns, fxn=kernel)[0]
        return out.reshape(num_tokens, -1)[:, : layout.info.num_rows]

    def rows(self, tokens: Tensor) -> Tensor:
        """Return ``weight[tokens]``: float32 ``[T, columns]`` for int32 ``[T]``, all valid rows."""
        num_tokens, layout = tokens.shape[0], self._layout
        out = Tensor.empty(
            num_tokens, layout.padded_columns, dtype=dtypes.float32, device=self._device
        )
        kernel = rows_kernel(layout, num_tokens, self._launch, self._to_float)
        out = out.custom_kernel(*self.planes, tokens.contiguous(), fxn=kernel)[0]
        return out[:, : layout.info.num_columns]


class DeviceWeights:
    """A ``TensorSink`` that accepts the tensors of ``program`` and nothing else.

    ``device`` is tinygrad's name of it, and ``has_f16`` is whether it supports f16. Rows are copied
    to the device as they arrive; ``layout.staging_bytes`` is the additional host memory. Raises
    ``UnitFaultError`` if the device has no memory left or the driver fails. The device determines
    ``launch``.
    """

    def __init__(
        self, program: Program, device: str, has_f16: bool, *, launch: Launch | None = None
    ) -> None:
        self._device = device
        self._launch = launch_for(device) if launch is None else launch
        self._to_float = f16_to_float if has_f16 else f16_bits_to_float
        self._shapes = {weight.name: weight.shape for weight in program.weights}
        self._loading: dict[str, _LoadingMatrix | _LoadingVector] = {}
        self._matrices: dict[str, DeviceMatrix] = {}
        self._vectors: dict[str, Plane] = {}

    @property
    def num_bytes(self) -> int:
        """Size on the device of the tensors received so far."""
        matrices = sum(matrix.num_bytes for matrix in self._matrices.values())
        return matrices + sum(vector.num_bytes for vector in self._vectors.values())

    def matrix(self, name: str) -> DeviceMatrix:
        """Return the matrix of that name, which must be finished."""
        return self._matrices[name]

    def vector(self, name: str) -> Tensor:
        """Return a vector as float32 ``[n]``."""
        return self._vectors[name].tensor

    def missing(self) -> tuple[str, ...]:
        """Return names that have not been loaded."""
        return tuple(
            name
            for name in self._shapes
            if name not in self._matrices and name not in self._vectors
        )

    def clear(self) -> None:
        """Free everything, and the memory of freed buffers that tinygrad keeps for reuse."""
        self._loading.clear()
        self._matrices.clear()
        self._vectors.clear()
        gc.collect()  # tinygrad's expressions contain reference cycles
        free_cache = getattr(Device[self._device].allocator, "free_cache", None)
        if free_cache is not None:
            free_cache()

    def begin(self, info: TensorInfo) -> None:
        """Allocate the tensor on the device; its name and shape must be the program's."""
        check_begin(self._shapes, info, set(self.missing()) - self._loading.keys())
        if info.num_columns % info.format.block_elements:
            raise weights_refused(f"rows of {info.name} are not whole {info.format.label} blocks")
        if len(info.shape) == 1:
            plane = Plane(self._device, dtypes.float32, info.num_columns)
            self._loading[info.name] = _LoadingVector(info=info, plane=plane)
            return
        layout = MatrixLayout(info)
        matrix = DeviceMatrix(self._device, layout, self._launch, self._to_float)
        rows = np.empty((layout.group_panels * PANEL_ROWS, info.row_bytes), np.uint8)
        self._loading[info.name] = _LoadingMatrix(info=info, matrix=matrix, rows=rows)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        """Copy the rows after those written so far to the device whenever panels are full."""
        loading = self._get(name)
        info = loading.info
        check_rows(info, loading.num_written, start_row, end_row, data)
        loading.write(data)

    def finish(self, name: str) -> None:
        """Finish the tensor, which can then be used."""
        loading = self._get(name)
        check_whole(loading.info, loading.num_written)
        if isinstance(loading, _LoadingVector):
            self._vectors[name] = loading.plane
        else:
            self._matrices[name] = loading.matrix
        del self._loading[name]

    def _get(self, name: str) -> _LoadingMatrix | _LoadingVector:
        if name not in self._loading:
            raise weights_refused(f"{name} was not begun")
        return self._loading[name]


@dataclass(slots=True, kw_only=True)
class _LoadingVector:
    info: TensorInfo
    plane: Plane
    num_written: int = 0

    def write(self, data: memoryview) -> None:
        """Write the single row."""
        self.plane.append(dequantize(data, self.info.format, self.info.num_columns))
        self.num_written = 1


@dataclass(slots=True, kw_only=True)
class _LoadingMatrix:
    """A matrix of which ``num_written`` rows were received; the last ``num_waiting`` of them are in
    ``rows``.
    """

    info: TensorInfo
    matrix: DeviceMatrix
    rows: NDArray[np.uint8]
    num_written: int = 0
    num_waiting: int = 0

    def write(self, data: memoryview) -> None:
        """Receive the next rows; groups of panels are copied to the device when they are full."""
        stored = np.frombuffer(data, np.uint8).reshape(-1, self.info.row_bytes)
        while len(stored):
            count = min(len(stored), len(self.rows) - self.num_waiting)
            self.rows[self.num_waiting : self.num_waiting + count] = stored[:count]
            stored = stored[count:]
            self.num_waiting += count
            self.num_written += count
            if self.num_waiting == len(self.rows) or self.num_written == self.info.num_rows:
                self.matrix.append(self.rows[: self.num_waiting])
                self.num_waiting = 0
