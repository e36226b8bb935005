"""A host, as far as it determines what loads there: a value that fits in 64 KB of JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Definition(enum.Enum):
    """A definition of a symbol in a library, as far as known."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Symbols(Protocol):
    """The dynamic symbols that a library defines."""

    def defines(self, name: str, version: str) -> Definition:
        """Return whether ``name`` is defined with ``version``, or in any version if that is
        empty.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLibrary:
    """A library that the loader of a host finds by its name, and what it needs in turn.

    ``versions`` are its version definitions (``GLIBC_2.17``); ``symbols`` is None if they were not
    read.
    """

    soname: str
    path: str
    versions: frozenset[str]
    needed: tuple[str, ...]
    symbols: Symbols | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPython:
    """The interpreter that a wheel is installed for: ``cpython``, (3, 11)."""

    implementation: str
    version: tuple[int, int]
    is_free_threaded: bool = False

    @property
    def name(self) -> str:
        """The version as ``--python`` takes it: ``3.11``, ``3.13t``."""
        return f"{self.version_text}t" if self.is_free_threaded else self.version_text

    @property
    def version_text(self) -> str:
        """The version as in metadata and markers, with or without the GIL: ``3.13``."""
        return ".".join(map(str, self.version))

    @property
    def abi_tag(self) -> str:
        """The ABI of a CPython in tags of wheels: ``cp311``, ``cp313t``."""
        return f"cp{self.name.replace('.', '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpu:
    """A GPU as its vendor's driver reports it. ``compute_capability`` is (8, 6), or None if
    unknown.
    """

    name: str
    compute_capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine before a wheel is installed on it.

    ``libc`` is ``glibc`` or ``musl``, ``libc_version`` (2, 36). ``is_complete``: a library that is
    neither among ``libraries`` nor ``other_libraries`` (of which only the names are known) does not
    exist there. It is false for policies, where such a library is merely not promised, and for the
    base of a system, where it is merely not described. ``cpu_features`` are named as in
    ``/proc/cpuinfo``, ``page_bytes`` is the size of the kernel's pages; None if unknown.
    ``cuda_driver`` is the driver's version ``(580, 65)``, ``cuda_version`` the newest CUDA that it
    supports ``(13, 0)``. ``tegra_release`` is the release of Jetson Linux (L4T, the base of
    JetPack) ``(36, 4)`` on a Jetson or another Tegra, empty if unknown, and None on other machines.
    ``amd_architectures`` are those of AMD's GPUs (``gfx1030``), empty if there are none or they are
    unknown.
    ``origin`` says where the description comes from.
    """

    name: str
    origin: str
    machine: str
    libc: str
    libc_version: tuple[int, int]
    is_complete: bool
    libraries: tuple[HostLibrary, ...]
    other_libraries: frozenset[str]
    python: HostPython | None = None
    cpu_features: frozenset[str] | None = None
    page_bytes: int | None = None
    cuda_driver: tuple[int, ...] | None = None
    cuda_version: tuple[int, int] | None = None
    gpus: tuple[HostGpu, ...] = ()
    tegra_release: tuple[int, ...] | None = None
    amd_architectures: tuple[str, ...] = ()

    @property
    def libc_text(self) -> str:
        """The C library with its version: ``glibc 2.36``."""
        return f"{self.libc} {self.libc_version[0]}.{self.libc_version[1]}"


GLIBC_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libmvec.so.1",
    "libanl.so.1",
    "libnsl.so.1",
)
"""In addition to the loader, which also defines symbols and has a different name on each machine.

These and ``OTHER_LIBRARIES`` are the libraries whose versions and symbols are in a description,
because portable builds rely on them: those that the manylinux policies promise (PEP 513, 571, 599,
600; the lists are auditwheel's), compiler runtimes, and vendors' libraries for their devices. Of
all other libraries of a host, only the names are described.
"""

OTHER_LIBRARIES = (
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libgomp.so.1",
    "libatomic.so.1",
    "libz.so.1",
    "libOpenCL.so.1",
    "libcuda.so.1",
    "libvulkan.so.1",
    "libquadmath.so.0",
    "libgfortran.so.5",
    "libcrypt.so.1",
    "libexpat.so.1",
    "libgthread-2.0.so.0",
    "libgobject-2.0.so.0",
    "libSM.so.6",
    "libICE.so.6",
    "libXext.so.6",
    "libXrender.so.1",
    "libX11.so.6",
    "libglib-2.0.so.0",
    "libGL.so.1",
)
"""Libraries that more wheels need come first: if a description grows too long, the symbols of the
last are omitted. OpenGL has 3,500, which hardly any wheel uses.
"""
