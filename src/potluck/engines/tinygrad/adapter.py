"""The one door to tinygrad: every name of it that is used, and its exceptions as ours.

Nothing else imports tinygrad. Importing this module imports it, so the environment must be that of
``environment.tinygrad_environment`` by then; what tinygrad would do without is said there. The
names are checked against what is used of them by ``tests/integration/test_tinygrad_names.py``.
"""

from __future__ import annotations

import importlib.metadata
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from potluck.errors import EngineError, PotluckError, UnitFaultError
from potluck.types.unit import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "0.14.0"
"""The only one: the interfaces below are young, and change without notice."""


def _check() -> None:
    if not os.environ.get("DEV"):
        raise EngineError(
            "tinygrad may not be imported before DEV says which device it is to open",
            hint="this is a defect in Potluck; please report it",
        )
    hint = "install it with: pip install 'potluck[tinygrad]'"
    try:
        installed = importlib.metadata.version("tinygrad")
    except importlib.metadata.PackageNotFoundError:
        raise EngineError("tinygrad is not installed", hint=hint) from None
    if installed != VERSION:
        raise EngineError(f"tinygrad {installed} is installed, not {VERSION}", hint=hint)


_check()

from tinygrad import Device, Tensor, TinyJit, dtypes  # noqa: E402
from tinygrad.device import Buffer, CompileError  # noqa: E402
from tinygrad.engine.realize import get_call_arg_uops, get_runtime  # noqa: E402
from tinygrad.runtime.autogen import opencl  # noqa: E402
from tinygrad.runtime.ops_cl import check as check_opencl  # noqa: E402
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp, buffers  # noqa: E402

__all__ = [
    "AxisType",
    "Buffer",
    "CompileError",
    "Device",
    "KernelInfo",
    "Ops",
    "Tensor",
    "TinyJit",
    "UOp",
    "buffers",
    "check_opencl",
    "dtypes",
    "get_call_arg_uops",
    "get_runtime",
    "opencl",
    "own_kernel",
    "tinygrad_errors",
]

# As drivers say it: CL_MEM_OBJECT_ALLOCATION_FAILURE -4, CL_OUT_OF_RESOURCES -5 and
# CL_OUT_OF_HOST_MEMORY -6, with which OpenCL drivers put off an allocation until it is used; CUDA's
# error 2, "out of memory".
_MEMORY_WORDS = ("ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "out of memory")

_NO_LIBRARY = "failed to load library"
"""What tinygrad says, as an ``AttributeError``, when a driver's library is used and not there."""


def own_kernel(name: str, device: str, body: UOp) -> UOp:
    """A kernel of ours for ``Tensor.custom_kernel``: what it stores, with all ranges ended.

    tinygrad spreads the ranges over a device's threads. Without such threads (a CPU) they are left
    as loops: unrolled, the estimate of the cost of a kernel of variable ranges becomes so long an
    expression that hashing it takes a minute (0.14.0).
    """
    opts = None if Device[device].renderer.has_local else ()
    return body.sink(arg=KernelInfo(name=name, opts_to_apply=opts))


@contextmanager
def tinygrad_errors() -> Iterator[None]:
    """Turn what tinygrad, a compiler or a driver raises into ``UnitFaultError``.

    A kernel that does not compile, and a compiler that is not there, are ``EngineError``: nothing
    is wrong with the device.
    """
    try:
        yield
    except PotluckError:
        raise
    except CompileError as error:
        raise EngineError(
            f"a kernel was refused by the device's compiler: {_line(error)}",
            hint="use another backend for this device: potluck probe shows which work",
        ) from error
    except FileNotFoundError as error:
        raise EngineError(
            f"tinygrad lacks a program or file: {_line(error)}",
            hint="for its CPU backend install clang; for a GPU see: potluck doctor",
        ) from error
    except MemoryError as error:
        raise _out_of_memory(error) from error
    except (RuntimeError, OSError, AssertionError, AttributeError, ExceptionGroup) as error:
        if isinstance(error, AttributeError) and _NO_LIBRARY not in str(error):
            raise  # a defect of ours
        if any(word in str(error) for word in _MEMORY_WORDS):
            raise _out_of_memory(error) from error
        raise UnitFaultError(
            Fault.DRIVER.value,
            f"the device's driver failed: {_line(error)}",
            hint="see the kernel's log (dmesg); a device that was reset works in a new process",
        ) from error


def _out_of_memory(error: BaseException) -> UnitFaultError:
    return UnitFaultError(
        Fault.OUT_OF_MEMORY.value,
        f"the device has no memory left: {_line(error)}",
        hint="close other programs that use it, or use a smaller model, context or batch",
    )


def _line(error: BaseException) -> str:
    """The first line that says something, of bounded length: compilers write pages."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]
