"""The libraries of the machine that tinygrad opens, and where it looks for them. Imports none.

tinygrad does not ask the dynamic linker: it goes through folders of its own choice, so that a
library which every other program finds may be missing for it. Names and folders are those of
tinygrad 0.14.0 (``runtime/support/c.py``, ``DLL.findlib``; ``runtime/autogen/*.py``, ``DLL(…)``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from potluck.engines.tinygrad.environment import AMD, CL, CUDA
from potluck.types.hardware import BackendLibrary

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
"""Either is enough: LLVM for the variant ``llvm``, ROCm's own for ``hip``."""


def _library(name: str, *stems: str, folders: tuple[str, ...] = ()) -> BackendLibrary:
    """What ``DLL(name, [stem, …])`` opens: ``lib<stem>.so``, with one number after it or none."""
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
"""By backend: those without which no variant of it works. NVRTC is none of them, as PTX is enough;
the compiler for Adreno is downloaded by tinygrad.
"""
