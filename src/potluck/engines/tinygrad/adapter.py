"""The only module that imports tinygrad: all names used from it, and the conversion of its
exceptions.

Importing this module imports tinygrad, so the environment must already be that of
``tinygrad_environment``, which explains what tinygrad would do otherwise.
``tests/integration/test_tinygrad_names.py`` checks the names against how they are used.
"""

from __future__ import annotations

import importlib.metadata
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from potluck.errors import DEFECT_HINT, EngineError, PotluckError, UnitFaultError
from potluck.types.unit import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "0.14.0"
"""The only supported version: the interfaces used here are young, and change without notice."""


def _check() -> None:
    if not os.environ.get("DEV"):
        raise EngineError(
            "DEV must name the device to open before tinygrad is imported",
            hint=DEFECT_HINT,
        )
    hint = "install it with: pip install 'potluck[tinygrad]'"
    try:
        installed = importlib.metadata.version("tinygrad")
    except importlib.metadata.PackageNotFoundError:
        raise EngineError("tinygrad is not installed", hint=hint) from None
    if installed != VERSION:
        raise EngineError(
            f"tinygrad {installed} is installed, but Potluck requires {VERSION}", hint=hint
        )


_check()

from tinygrad import Device, Tensor, TinyJit, dtypes  # noqa: E402
from tinygrad.device import Buffer, CompileError  # noqa: E402
from tinygrad.engine.realize import get_call_arg_uops, get_runtime  # noqa: E402
from tinygrad.runtime.autogen import cuda, opencl  # noqa: E402
from tinygrad.runtime.ops_cl import check as check_opencl  # noqa: E402
from tinygrad.runtime.ops_cuda import check as check_cuda  # noqa: E402
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
    "check_cuda",
    "check_opencl",
    "cuda",
    "dtypes",
    "get_call_arg_uops",
    "get_runtime",
    "opencl",
    "own_kernel",
    "tinygrad_errors",
]

# Error texts of drivers: CL_MEM_OBJECT_ALLOCATION_FAILURE -4, CL_OUT_OF_RESOURCES -5 and
# CL_OUT_OF_HOST_MEMORY -6, because OpenCL drivers defer an allocation until it is used; CUDA's
# error 2, "out of memory".
_MEMORY_WORDS = ("ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "out of memory")

_NO_LIBRARY = "failed to load library"
"""tinygrad's message, in an ``AttributeError``, when it uses a driver's library that is missing."""


def own_kernel(name: str, device: str, body: UOp) -> UOp:
    """Build a custom kernel for ``Tensor.custom_kernel`` from its stores, with all ranges closed.

    tinygrad spreads the ranges over a device's threads. Without such threads (a CPU), they remain
    loops: if they were unrolled, the cost estimate of a kernel with variable ranges would become an
    expression so long that hashing it takes a minute (0.14.0).
    """
    opts = None if Device[device].renderer.has_local else ()
    return body.sink(arg=KernelInfo(name=name, opts_to_apply=opts))


@contextmanager
def tinygrad_errors() -> Iterator[None]:
    """Convert exceptions of tinygrad, a compiler or a driver to ``UnitFaultError``.

    A kernel that does not compile, and a missing compiler, are ``EngineError``: the device is not
    faulty.
    """
    try:
        yield
    except PotluckError:
        raise
    except CompileError as error:
        raise EngineError(
            f"the device's compiler rejected a kernel: {_line(error)}",
            hint="use another backend for this device: potluck probe shows which work",
        ) from error
    except FileNotFoundError as error:
        raise EngineError(
            f"tinygrad requires a program or file that is missing: {_line(error)}",
            hint="for its CPU backend, install clang; for a GPU, see potluck doctor",
        ) from error
    except MemoryError as error:
        raise _out_of_memory(error) from error
    except (RuntimeError, OSError, AssertionError, AttributeError, ExceptionGroup) as error:
        if isinstance(error, AttributeError) and _NO_LIBRARY not in str(error):
            raise  # a bug in Potluck
        if any(word in str(error) for word in _MEMORY_WORDS):
            raise _out_of_memory(error) from error
        raise UnitFaultError(
            Fault.DRIVER.value,
            f"the device's driver failed: {_line(error)}",
            hint="see the kernel log (dmesg); after a reset, the device works again in a new"
            " process",
        ) from error


def _out_of_memory(error: BaseException) -> UnitFaultError:
    return UnitFaultError(
        Fault.OUT_OF_MEMORY.value,
        f"the device is out of memory: {_line(error)}",
        hint="close other programs that use the device, or use a smaller model, context or batch",
    )


def _line(error: BaseException) -> str:
    """Return the first non-empty line, truncated: compilers write pages."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]
