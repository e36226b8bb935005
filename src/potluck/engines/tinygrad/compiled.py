"""Run calls that tinygrad has compiled, with little Python overhead between kernels.

tinygrad looks up everything about a kernel on each launch, which on small devices takes longer than
the kernel. If it has nothing better (a graph of kernels that the driver launches at once), the
launches are stored here and repeated: all buffers of a call have fixed locations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.engines.tinygrad.adapter import (
    Device,
    Ops,
    Tensor,
    TinyJit,
    UOp,
    buffers,
    dtypes,
    get_call_arg_uops,
    get_runtime,
    tinygrad_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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


def _shared_scratch(linear: UOp) -> UOp:
    """Return the kernels of ``linear``, in which later intermediate buffers reuse earlier ones.

    Intermediate buffers are those that are not allocated in advance. A buffer may reuse a larger
    one of its type.

    tinygrad lets intermediate buffers of a call share memory as parts of one buffer, which OpenCL
    does not support; without it, every layer would keep its own buffers. Here whole buffers are
    reused.
    """
    first_uses: dict[UOp, int] = {}
    last_uses: dict[UOp, int] = {}
    for index, kernel in enumerate(linear.src):
        for buffer in _intermediates(kernel):
            first_uses.setdefault(buffer, index)
            last_uses[buffer] = index
    places: dict[UOp, UOp] = {}
    free: list[UOp] = []
    in_use: dict[UOp, int] = {}
    for buffer, first in first_uses.items():
        ended = [place for place, last in in_use.items() if last < first]
        for place in ended:
            del in_use[place]
        free += ended
        fitting = [
            place
            for place in free
            if place.dtype == buffer.dtype and place.max_numel() >= buffer.max_numel()
        ]
        place = min(fitting, key=lambda place: int(place.max_numel()), default=buffer)
        if place in free:
            free.remove(place)
        places[buffer] = place
        in_use[place] = last_uses[buffer]
    return linear.substitute(places, walk=True)


def _intermediates(kernel: UOp) -> Iterator[UOp]:
    for argument in kernel.src[1:]:
        for part in argument.toposort():
            if part.op is Ops.BUFFER and not part.is_variable and buffers.get(part) is None:
                yield part


class Compiled:
    """A ``function`` of some variables that is compiled on its first call.

    It computes in one ``realize``, between tensors at fixed locations, and returns nothing.
    """

    def __init__(self, function: Callable[..., None], device: OpenDevice) -> None:
        self._jit = TinyJit(function)
        self._jit.cnt = 1  # otherwise the first call would run what the second compiles
        self._launches: tuple[_Launch, ...] | None = None
        if not device.has_parts:
            add_linear = self._jit.add_linear
            self._jit.add_linear = lambda linear, values: add_linear(
                _shared_scratch(linear), values
            )

    def __call__(self, *variables: UOp) -> None:
        """Launch the kernels with these bound variables; they may still run when this returns."""
        if self._launches is None:
            self._jit(*variables)
            self._launches = launches(self._jit.captured.linear)
        elif self._launches:
            values = {name.expr: value for name, value in (one.unbind() for one in variables)}
            for launch in self._launches:
                launch(values)
        else:
            self._jit(*variables)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel with its buffers. ``info`` is what depends on variables; None if nothing does."""

    run: Callable[..., Any]
    buffers: tuple[Any, ...]
    sizes: tuple[Any, Any]
    info: Any | None

    def __call__(self, values: Mapping[str, int]) -> None:
        sizes, given = self.sizes, ()
        if self.info is not None:
            sizes, given = self.info.launch_dims(values), self.info.vals(values)
        self.run(*self.buffers, global_size=sizes[0], local_size=sizes[1], vals=given)


def launches(linear: UOp) -> tuple[_Launch, ...]:
    """Return the launches of all kernels; none if one of them is launched in another way."""
    if any(call.src[0].op is not Ops.PROGRAM for call in linear.src):
        return ()
    return tuple(_launch(call) for call in linear.src)


def _launch(call: UOp) -> _Launch:
    program = call.src[0]
    arguments = get_call_arg_uops(call)
    device = call.src[1].device
    return _Launch(
        run=get_runtime(device, program),
        buffers=tuple(
            arguments[i].buffer.ensure_allocated().get_buf(device) for i in program.arg.globals
        ),
        sizes=((), ()) if program.arg.vars else program.arg.launch_dims({}),
        info=program.arg if program.arg.vars else None,
    )
