"""The system libraries that tinygrad opens, and where it looks for them. Imports none of them.
tinygrad does not use the dynamic linker: it searches its own list of directories, so it may not
find a library that every other program finds. Names and folders are those of tinygrad 0.14.0
(``runtime/support/c.py``, ``DLL.findlib``; ``runtime/autogen/*.py``, ``DLL(…)``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from potluck.engines.tinygrad.environment import AMD, CL, CUDA
from potluck.types.backend import BackendLibrary

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
PTX is sufficient; tinygrad downloads the compiler for Adreno."""
