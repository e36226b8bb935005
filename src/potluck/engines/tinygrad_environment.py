"""The environment of a process that computes with tinygrad. Does not import tinygrad.

tinygrad reads its environment once, while it is imported. By default it opens all its backends in
turn, and as root its AMD and NVIDIA backends may take a GPU away from its driver: so ``DEV`` is
always explicit, and for AMD it names the kernel's compute driver (``KFD``) as the only way to
access the device. Names are those of tinygrad 0.14.0 (``helpers.Target``, ``runtime/ops_*.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from potluck.errors import DEFECT_HINT, EngineError
from potluck.types.backend import BackendLibrary

if TYPE_CHECKING:
    from potluck.types.unit import Interface


CUDA = "tinygrad:CUDA"
AMD = "tinygrad:AMD"
QCOM = "tinygrad:QCOM"
CL = "tinygrad:CL"
CPU = "tinygrad:CPU"

VARIANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        # Compilers, by tinygrad's names for them. PTX requires only the driver.
        CUDA: MappingProxyType({"ptx": "PTX", "nvrtc": "CUDA"}),
        AMD: MappingProxyType({"llvm": "LLVM", "hip": "HIP"}),
        QCOM: MappingProxyType({"cl": "CL"}),
        CL: MappingProxyType({"opencl": "OPENCL"}),
        CPU: MappingProxyType({"clang": "CLANG"}),
    }
)
"""The compilers that each backend supports: our names, and those in ``DEV``.

The one with the fewest requirements is first; an address without a variant uses it.
"""

_FOLDERS = (
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
    "/lib",
    "/lib64",
    "/lib/{machine}-linux-gnu",
)

_ROCM_FOLDER = "/opt/rocm/lib"

_COMPILERS_FOR_AMD = (
    "LLVM",
    *(f"LLVM-{version}" for version in range(21, 13, -1)),
    "amd_comgr",
)
"""Either is sufficient: LLVM for the variant ``llvm``, ROCm's own for ``hip``."""


def tinygrad_environment(
    backend: str, interface: Interface | None, variant: str
) -> Mapping[str, str]:
    """Return the update of ``os.environ`` that is needed before ``tinygrad.adapter`` is imported.

    ``interface`` identifies the device; None means the only one. ``variant`` is one of ``VARIANTS``
    or empty. Compiled kernels are not cached for other processes: most of the time goes into
    generating their source, which tinygrad does not cache, and a home directory may be read-only.
    Raises ``EngineError`` for a device that cannot be selected this way.
    """
    compilers = VARIANTS.get(backend)
    if compilers is None:
        raise EngineError(
            f"tinygrad has no backend {backend}", hint=f"known: {', '.join(VARIANTS)}"
        )
    if variant and variant not in compilers:
        raise EngineError(
            f"{backend} has no variant {variant}", hint=f"known: {', '.join(compilers)}"
        )
    compiler = compilers[variant or next(iter(compilers))]
    address = "" if interface is None else interface.address
    # Compile in this process only: helpers of helpers would outlive a child process that is killed.
    common = {"PARALLEL": "0", "CACHELEVEL": "0"}
    match backend:
        case "tinygrad:CUDA":
            return {**common, "DEV": f"CUDA:{compiler}", **_cuda_choice(address)}
        case "tinygrad:AMD":
            return {**common, "DEV": f"KFD:{_rank(address)}+AMD:{compiler}"}
        case "tinygrad:CL":
            return {**common, "DEV": f"CL:{compiler}", **_opencl_choice(address)}
        case _:
            return {**common, "DEV": f"{backend.partition(':')[2]}:{compiler}"}


def tinygrad_device(backend: str, interface: Interface | None) -> str:
    """Return tinygrad's name of the device in a process with that environment: ``CL``, ``CL:1``.

    All except OpenCL's are selected by the environment, so that they are the only ones.
    """
    name = backend.partition(":")[2]
    if backend != CL or interface is None or not interface.address:
        return name
    _, _, device = _opencl_place(interface.address)
    return f"{name}:{device}" if device else name


def _cuda_choice(address: str) -> dict[str, str]:
    """Select a device by UUID (``GPU-…``, ``MIG-…``); the only device needs no selection."""
    if not address:
        return {}
    if not address.startswith(("GPU-", "MIG-")):
        raise EngineError(
            f"the CUDA device at {address} cannot be identified without its UUID",
            hint="run potluck doctor to see why NVML does not report it",
        )
    return {"CUDA_VISIBLE_DEVICES": address, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _rank(address: str) -> int:
    if address and not address.isdecimal():
        raise EngineError(
            f"{address!r} is not the index of a KFD node",
            hint=DEFECT_HINT,
        )
    return int(address or "0")


def _opencl_choice(address: str) -> Mapping[str, str]:
    """Read the driver's file for its library, which one of the two loaders requires."""
    if not address:
        return {}
    file, platform, _ = _opencl_place(address)
    if platform:
        raise EngineError(
            f"tinygrad only supports the first OpenCL platform of {file}, but this is number"
            f" {platform} (from 0)",
            hint="use another backend for this device",
        )
    from potluck.probe.gpus.icds import icd_environment

    return icd_environment(address)


def _opencl_place(address: str) -> tuple[str, int, int]:
    """Return file, platform and device of ``/etc/OpenCL/vendors/pocl.icd#0:0``."""
    file, _, place = address.rpartition("#")
    platform, _, device = place.partition(":")
    if not (file and platform.isdecimal() and device.isdecimal()):
        raise EngineError(
            f"{address!r} is not the address of an OpenCL device",
            hint=DEFECT_HINT,
        )
    return file, int(platform), int(device)


def _library(name: str, *stems: str, folders: tuple[str, ...] = ()) -> BackendLibrary:
    """Return the pattern that ``DLL(name, [stem, …])`` opens: ``lib<stem>.so``, optionally with a
    number.
    """
    return BackendLibrary(
        name=f"lib{stems[0]}.so",
        patterns=tuple(rf"lib{re.escape(stem)}\.so\.?[0-9]*" for stem in stems),
        folders=(*_FOLDERS, *folders),
        variable=f"{name.upper()}_PATH",
    )


LIBRARIES: Mapping[str, tuple[BackendLibrary, ...]] = MappingProxyType(
    {
        CUDA: (_library("cuda", "cuda"),),
        AMD: (_library("llvm", *_COMPILERS_FOR_AMD, folders=(_ROCM_FOLDER,)),),
        CL: (_library("opencl", "OpenCL"),),
    }
)
"""By backend, the libraries without which none of its variants work. NVRTC is not included, because
PTX is sufficient; tinygrad downloads the compiler for Adreno.

tinygrad does not use the dynamic linker: it searches its own list of directories, so it may not
find a library that every other program finds. Names and folders are those of tinygrad 0.14.0
(``runtime/support/c.py``, ``DLL.findlib``; ``runtime/autogen/*.py``, ``DLL(…)``).
"""
