"""Checks that tinygrad has what is used of it, as it is used; see ``tinygrad_child``.

When one fails after a change of version, the adapter and what it names here must be read again.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tinygrad.runtime.ops_cuda import CUDADevice
from tinygrad.runtime.support.c import DLL

from potluck.engines.tinygrad import adapter
from potluck.engines.tinygrad.adapter import (
    AxisType,
    Buffer,
    CompileError,
    Device,
    KernelInfo,
    Ops,
    Tensor,
    TinyJit,
    UOp,
    buffers,
    check_cuda,
    check_opencl,
    cuda,
    dtypes,
    get_call_arg_uops,
    get_runtime,
    opencl,
)
from potluck.engines.tinygrad_environment import LIBRARIES
from potluck.host.system import System
from potluck.probe.doctor.look import find_library


def check_every_name_is_checked_here() -> None:
    ours = {"own_kernel", "tinygrad_errors"}
    assert set(adapter.__all__) - ours <= set(globals())


def check_parameters() -> None:
    """Positions and names that are passed."""
    takes: dict[Callable[..., object], tuple[str, ...]] = {
        Tensor.empty: ("dtype", "device"),
        Tensor.zeros: ("dtype", "device"),
        Tensor.custom_kernel: ("fxn",),
        Tensor.max: ("axis", "keepdim"),
        Tensor.mean: ("axis", "keepdim"),
        Tensor.sum: ("axis",),
        Tensor.stack: ("dim",),
        Buffer.__init__: ("device", "size", "dtype", "opaque", "preallocate"),
        UOp.variable: ("name", "min_val", "max_val", "param"),
        UOp.range: ("end", "axis_id", "axis_type"),
        UOp.substitute: ("walk",),
        KernelInfo: ("name", "opts_to_apply"),
        check_cuda: ("status",),
        check_opencl: ("status",),
    }
    for function, names in takes.items():
        parameters = inspect.signature(function).parameters
        missing = [name for name in names if name not in parameters]
        has_more = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        assert has_more or not missing, (function, missing)


def check_members() -> None:
    members = {
        Tensor: "contiguous realize reshape cast square rsqrt silu exp unsqueeze pad uop dtype",
        UOp: (
            "after bind bitcast cast const_like end eq exp from_buffer group load ne reduce sink "
            "store where base realized max_numel is_variable toposort src op vmax"
        ),
        Buffer: "nbytes view ensure_allocated copy_from allocator",
        AxisType: "GLOBAL LOCAL GROUP_REDUCE REDUCE UPCAST WEAK",
        Ops: "ADD BUFFER MAX PROGRAM",
        dtypes: "float half int int32 uint8 uint16 uint32 float16 float32 weakint",
        opencl: (
            "clEnqueueWriteBuffer clGetDeviceInfo CL_DEVICE_TYPE CL_DEVICE_MAX_WORK_GROUP_SIZE "
            "CL_DEVICE_MAX_COMPUTE_UNITS"
        ),
        cuda: "cuDeviceGetAttribute CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    }
    buffer = Buffer(Device.canonicalize(None), 4, dtypes.float, preallocate=True)
    missing = [
        (owner, name)
        for owner, names in members.items()
        for name in names.split()
        if not hasattr(buffer if owner is Buffer else owner, name)
    ]
    assert not missing
    assert issubclass(CompileError, Exception)
    assert "self.cu_device = " in inspect.getsource(CUDADevice)


def check_bytes_go_to_the_beginning_of_a_buffer_and_back() -> None:
    tensor = Tensor.zeros(8, dtype=dtypes.float).contiguous().realize()
    buffer = tensor.uop.base.realized
    assert buffers[tensor.uop.base] is buffer
    values = np.arange(3, dtype=np.float32)
    buffer.allocator._copyin(buffer._buf, values.data.cast("B"))
    found = np.empty(5, np.float32)
    buffer.allocator._copyout(found.data.cast("B"), buffer._buf)
    assert found.tolist() == [0, 1, 2, 0, 0]


def check_a_compiled_call_can_be_launched_by_hand() -> None:
    place = Tensor.zeros(4, dtype=dtypes.float).contiguous().realize()

    def function() -> None:
        place.assign(place + 1).realize()

    jit = TinyJit(function)
    jit.cnt = 1
    jit()
    (call,) = jit.captured.linear.src
    assert call.src[0].op is Ops.PROGRAM
    info, device = call.src[0].arg, call.src[1].device
    used = [get_call_arg_uops(call)[i].buffer.get_buf(device) for i in info.globals]
    global_size, local_size = info.launch_dims({})
    assert info.vals({}) == info.vars == ()
    run = get_runtime(device, call.src[0])
    run(*used, global_size=global_size, local_size=local_size, vals=())
    assert place.numpy().tolist() == [2, 2, 2, 2]


def check_a_jit_that_begins_at_its_second_call_compiles_at_the_first() -> None:
    """And hands all kernels to ``add_linear``, once."""
    place = Tensor.zeros(4, dtype=dtypes.float).contiguous().realize()
    calls, linears = [], []

    def function() -> None:
        calls.append(1)
        place.assign(place + 1).realize()

    jit = TinyJit(function)
    jit.cnt = 1
    add_linear = jit.add_linear

    def add(linear: UOp, values: dict[str, int]) -> None:
        linears.append(linear)
        add_linear(linear, values)

    jit.add_linear = add
    for _ in range(3):
        jit()
    assert (len(calls), len(linears)) == (1, 1)
    assert linears[0].src
    assert place.numpy().tolist() == [3, 3, 3, 3]


def check_the_device_says_what_it_can() -> None:
    name = Device.canonicalize(None)
    renderer = Device[name].renderer
    assert dtypes.float in renderer.supported_dtypes()
    assert isinstance(renderer.has_local, bool)
    assert callable(getattr(Device[name], "synchronize", None))


def check_it_opens_the_libraries_that_the_doctor_looks_for() -> None:
    """Under the names, by the variables and in the folders of ``engines.tinygrad_environment``."""
    modules = {"libcuda.so": "cuda", "libLLVM.so": "llvm", "libOpenCL.so": "opencl"}
    searched = inspect.getsource(DLL.findlib)
    libraries = [library for each in LIBRARIES.values() for library in each]
    assert {library.name for library in libraries} == set(modules)
    for library in libraries:
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.dict(os.environ, {"LD_LIBRARY_PATH": folder}),
        ):
            file = Path(folder, f"{library.name}.1")
            file.write_bytes(b"\x7fELF")
            dll = _opened_anew(modules[library.name])
            assert dll.emsg.startswith(f"{file}: "), dll.emsg
            assert f"{dll.nm.upper()}_PATH" == library.variable
            found = find_library(System(), library, platform.machine(), os.environ)
            assert found == str(file)
        usual = [each.partition("{")[0].rstrip("/") for each in library.folders]
        unknown = [each for each in usual if each not in searched]
        assert unknown == (["/opt/rocm/lib"] if library.name == "libLLVM.so" else [])


def _opened_anew(module: str) -> DLL:
    """The library of a module of bindings, as it opens it now."""
    spec = importlib.util.find_spec(f"tinygrad.runtime.autogen.{module}")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh.dll
