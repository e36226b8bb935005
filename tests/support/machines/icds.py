"""Fake OpenCL drivers (ICDs), built with gcc: ``icds/plain.c`` answers and computes nothing,
``icds/around_pocl.c`` computes through PoCL and can fail in all the ways that GPUs do.

What one does is a file beside its library (``icds/settings.h``), read anew at every call: a test
can turn a driver bad while a process uses it, with :func:`change_icd`. An ICD is chosen by the
environment of :func:`icd_environment`, also by a path that an agent or a command is started with.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from support.kernels.build import not_shown, require_tool

_SOURCES = Path(__file__).with_name("icds")
NO_ICDS = {"OCL_ICD_VENDORS": str(_SOURCES)}
"""An environment without drivers, whatever this machine has: a folder without any."""

_POCL = Path("/etc/OpenCL/vendors/pocl.icd")

MALI = {
    "platform": "ARM Platform",
    "name": "Mali-G610 r0p0",
    "vendor": "ARM",
    "vendor_id": "0xa8670000",
    "driver": "3.0",
}
NVIDIA = {
    "platform": "NVIDIA CUDA",
    "name": "NVIDIA GeForce RTX 4090",
    "vendor": "NVIDIA Corporation",
    "vendor_id": "0x10de",
    "driver": "550.54.14",
}

_GPU = {"type": "gpu"} | MALI

KINDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    # Only answer: for the probe.
    "gpu": ("plain", MALI),
    "crashes-at-load": ("plain", {"load": "crash"}),
    "crashes-in-devices": ("plain", {"devices": "crash"}),
    "hangs-at-load": ("plain", {"load": "hang"}),
    "hangs-in-devices": ("plain", {"devices": "hang"}),
    "signals-at-load": ("plain", MALI | {"load": "10"}),  # SIGUSR1
    "grows": ("plain", {"devices": "grow"}),
    "chatters": ("plain", MALI | {"load": "chatter", "info": "chatter"}),
    "lies-about-sizes": ("plain", {"size_lie": str(1 << 40)}),
    "has-no-devices": ("plain", {"num_devices": "0"}),
    # Compute: PoCL as it is, PoCL that passes for a GPU, and GPUs that fail.
    "pocl": ("around_pocl", {}),
    "computing-gpu": ("around_pocl", _GPU),
    "wrong-numbers": ("around_pocl", _GPU | {"fault": "wrong"}),
    "nan": ("around_pocl", _GPU | {"fault": "nan"}),
    "hangs": ("around_pocl", _GPU | {"fault": "hang"}),
    "crashes": ("around_pocl", _GPU | {"fault": "crash"}),
    "out-of-resources": ("around_pocl", _GPU | {"fault": "out-of-resources"}),
    "allocation-failure": ("around_pocl", _GPU | {"fault": "allocation-failure"}),
}


def build_icd(kind: str, folder: Path, **settings: str) -> Path:
    """An ICD of one of ``KINDS``: the path of its file ``folder/KIND.icd``.

    ``settings`` are those of the source (``fault_at="3"``), over the kind's own; an empty text
    takes one away. The library and its settings lie beside it; ``folder`` has nothing else with
    the ending ``.icd`` unless it is put there, so it serves as a folder of vendors.
    """
    source, own = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"lib{kind}.so"
    library.write_bytes(_library(source))
    icd = folder / f"{kind}.icd"
    icd.write_text(f"{library}\n")
    real = {"real": pocl_library()} if source == "around_pocl" else {}
    _write_settings(library, real | dict(own) | settings)
    return icd


def change_icd(icd: Path, **settings: str) -> None:
    """Change what an ICD does from its next call on, in processes that use it already too."""
    library = Path(icd.read_text().strip())
    kept = dict(line.split("=", 1) for line in _settings_file(library).read_text().splitlines())
    _write_settings(library, kept | settings)


def icd_environment(icd: Path) -> dict[str, str]:
    """This process's environment with this ICD alone; also a folder with several."""
    return {**os.environ, "OCL_ICD_VENDORS": str(icd)}


def pocl_library() -> str:
    """PoCL's library, as its ICD file names it."""
    if not _POCL.exists():
        not_shown("there is no PoCL (package pocl-opencl-icd)")
    return _POCL.read_text().strip()


def _write_settings(library: Path, settings: Mapping[str, str]) -> None:
    file = _settings_file(library)
    draft = file.with_suffix(".draft")
    draft.write_text("".join(f"{name}={text}\n" for name, text in settings.items() if text))
    draft.replace(file)  # at once: who reads it never sees half of it


def _settings_file(library: Path) -> Path:
    return library.with_name(f"{library.name}.settings")


@cache
def _library(source: str) -> bytes:
    if not Path("/usr/include/CL/cl_icd.h").exists():
        not_shown("there are no headers of OpenCL (package ocl-icd-opencl-dev)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "lib.so")
        command = [require_tool("gcc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        command += ["-fvisibility=hidden", "-D_GNU_SOURCE", "-DCL_TARGET_OPENCL_VERSION=300"]
        command += ["-DCL_USE_DEPRECATED_OPENCL_1_1_APIS", str(_SOURCES / f"{source}.c")]
        subprocess.run([*command, "-ldl", "-o", str(library)], check=True)
        return library.read_bytes()
