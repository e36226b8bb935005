"""Describe this machine, or the system in a directory, as far as it determines what loads there.

Only files are read: nothing is executed, no library is opened, no device is queried. What only a
driver can report (compute capability, the newest CUDA) is added by the callers that query drivers.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import sys
import sysconfig
from pathlib import Path, PurePosixPath
from typing import Final

from potluck.portability.hosts.amd_architectures import amd_architectures
from potluck.portability.hosts.c_library import CLibrary, find_c_library, read_library
from potluck.portability.hosts.host import (
    GLIBC_LIBRARIES,
    OTHER_LIBRARIES,
    Host,
    HostGpu,
    HostLibrary,
    HostPython,
)
from potluck.portability.hosts.library_file import LibraryFile
from potluck.portability.hosts.root_files import RootFiles
from potluck.portability.hosts.symbol_set import symbol_set

THIS_ROOT: Final = Path("/")

_NVIDIA_MODULE = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
"""``NVRM version: NVIDIA UNIX x86_64 Kernel Module 535.104.05 …``; the open-source one has ``NVIDIA
UNIX Open Kernel Module for x86_64 550.54.14 …``.
"""

_CUDA_LIBRARY = re.compile(r"libcuda\.so\.(\d+(?:\.\d+){1,2})")
"""The file name contains the driver's version: ``libcuda.so.535.104.05``. Tegra's is
``libcuda.so.1.1``.
"""

_TEGRA_RELEASE = re.compile(r"#\s*R(\d{1,4}) \(release\), REVISION: (\d{1,4})\.(\d{1,4})")
"""``/etc/nv_tegra_release``: ``# R36 (release), REVISION: 4.0, GCID: …``."""

_PYTHON = re.compile(r"python(\d+)\.(\d+)(t?)")


def describe_host(root: Path = THIS_ROOT, *, name: str = "", origin: str = "") -> Host:
    """Describe the host whose ``/`` is ``root``.

    ``name`` and ``origin`` default to the machine's name and to the contents of ``os-release``. For
    this machine, the C library, search path and Python are those of the running interpreter; for
    another root, those of its shell and its ``python3``. Raise ``HostError`` if there is no C
    library.
    """
    files = RootFiles(root)
    is_this = root == THIS_ROOT
    c_library = find_c_library(files, os.path.realpath(sys.executable) if is_this else None)
    libraries = _libraries(files, c_library)
    sonames = c_library.paths.sonames(files, _abi(c_library, libraries))
    return Host(
        name=name or (platform.node() if is_this else root.name) or "host",
        origin=origin or f"the files of {_distribution(files)}",
        machine=c_library.machine,
        libc=c_library.name,
        libc_version=c_library.version,
        is_complete=True,
        libraries=libraries,
        other_libraries=sonames - {each.soname for each in libraries},
        python=running_python() if is_this else _installed_python(files),
        cpu_features=_cpu_features(files, c_library.machine),
        page_bytes=mmap.PAGESIZE if is_this else None,
        cuda_driver=_nvidia_driver(files, libraries),
        gpus=_nvidia_gpus(files),
        tegra_release=_tegra_release(files),
        amd_architectures=amd_architectures(files),
    )


def _libraries(files: RootFiles, c_library: CLibrary) -> tuple[HostLibrary, ...]:
    is_musl = c_library.name == "musl"  # which is its own loader
    loader_name = c_library.soname if is_musl else PurePosixPath(c_library.loader).name
    found = [_described(loader_name, c_library.loader, c_library.loader_elf)]
    sonames = OTHER_LIBRARIES if is_musl else (*GLIBC_LIBRARIES, *OTHER_LIBRARIES)
    for soname in sonames:
        for path in c_library.paths.candidates(files, soname):
            elf = read_library(files, path)
            if elf is not None and elf.machine == c_library.machine:
                found.append(_described(soname, path, elf))
                break
    return tuple(found)


def _described(soname: str, path: str, elf: LibraryFile) -> HostLibrary:
    return HostLibrary(
        soname=soname,
        path=path,
        versions=frozenset(elf.version_definitions),
        needed=elf.needed,
        symbols=None if elf.defined is None else symbol_set(elf.defined, elf.version_definitions),
    )


def _abi(c_library: CLibrary, libraries: tuple[HostLibrary, ...]) -> int | None:
    """Return the loader cache's number for libraries of this host's ABI, that of its C library."""
    path = next((each.path for each in libraries if each.soname == c_library.soname), "")
    return next((each.flags for each in c_library.paths.cache if each.path == path), None)


def _distribution(files: RootFiles) -> str:
    text = files.text("/etc/os-release") or files.text("/usr/lib/os-release")
    match = re.search(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", text, re.MULTILINE)
    return match[1] if match else "an unnamed Linux system"


def running_python() -> HostPython:
    """Return the interpreter that runs this."""
    return HostPython(
        implementation=sys.implementation.name,
        version=sys.version_info[:2],
        is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )


def _installed_python(files: RootFiles) -> HostPython | None:
    """Return the target of ``python3``; Docker images of Python have it in ``/usr/local``."""
    for directory in ("/usr/local/bin", "/usr/bin"):
        real = files.real_path(f"{directory}/python3")
        if real and (match := _PYTHON.fullmatch(PurePosixPath(real).name)):
            return HostPython(
                implementation="cpython",
                version=(int(match[1]), int(match[2])),
                is_free_threaded=bool(match[3]),
            )
    return None


def _cpu_features(files: RootFiles, machine: str) -> frozenset[str] | None:
    """Return the features that all cores have. None if the kernel describes another machine, as it
    does for emulated programs.
    """
    field = {"x86_64": "flags", "i686": "flags"}.get(machine, "Features")
    lines = (line.partition(":") for line in files.text("/proc/cpuinfo").splitlines())
    cores = [frozenset(value.split()) for name, _, value in lines if name.strip() == field]
    return frozenset.intersection(*cores) if cores else None


def _nvidia_driver(files: RootFiles, libraries: tuple[HostLibrary, ...]) -> tuple[int, ...] | None:
    """Return the version of the kernel driver, or else of the user library: both must be
    the same.
    """
    text = files.text("/sys/module/nvidia/version").strip()
    if not re.fullmatch(r"\d+(\.\d+)+", text):
        match = _NVIDIA_MODULE.search(files.text("/proc/driver/nvidia/version"))
        text = match[1] if match else _cuda_library_version(files, libraries)
    return tuple(int(number) for number in text.split(".")) if text else None


def _tegra_release(files: RootFiles) -> tuple[int, ...] | None:
    """Return the release of Jetson Linux; empty on a Tegra without it, such as in a container, and
    None on other machines.
    """
    if match := _TEGRA_RELEASE.match(files.text("/etc/nv_tegra_release")):
        return int(match[1]), int(match[2]), int(match[3])
    return () if "nvidia,tegra" in files.text("/proc/device-tree/compatible") else None


def _cuda_library_version(files: RootFiles, libraries: tuple[HostLibrary, ...]) -> str:
    path = next((each.path for each in libraries if each.soname == "libcuda.so.1"), "")
    real = files.real_path(path) if path else None
    match = _CUDA_LIBRARY.fullmatch(PurePosixPath(real).name) if real else None
    return match[1] if match and not match[1].startswith("1.") else ""


def _nvidia_gpus(files: RootFiles) -> tuple[HostGpu, ...]:
    """Return GPUs by the names that the kernel driver reports."""
    directory = "/proc/driver/nvidia/gpus"
    texts = (
        files.text(f"{directory}/{each}/information") for each in sorted(files.names(directory))
    )
    matches = (re.search(r"^Model:\s*(\S.*)$", text, re.MULTILINE) for text in texts)
    return tuple(HostGpu(name=each[1].strip(), compute_capability=None) for each in matches if each)
