"""A host, as what loads there depends on it: a value that fits in 64 KB of JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Definition(enum.Enum):
    """What is known of a symbol in a library."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Symbols(Protocol):
    """The dynamic symbols that a library defines."""

    def defines(self, name: str, version: str) -> Definition:
        """Whether ``name`` with ``version`` is defined; of no version in particular where that is
        empty.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLibrary:
    """A library that the loader of a host finds by its name, and what it needs in turn.

    ``versions`` are its version definitions (``GLIBC_2.17``); ``symbols`` is None where nobody read
    them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpu:
    """A GPU by its maker's driver. ``compute_capability`` is (8, 6), None where not known."""

    name: str
    compute_capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is on a machine before a wheel is installed there.

    ``libc`` is ``glibc`` or ``musl``, ``libc_version`` (2, 36). ``is_complete``: a library that is
    not among ``libraries`` nor ``other_libraries`` (names alone are known of these) is not there;
    of a policy, which promises some libraries, it only is not promised, and of the base of a system
    it only is not told. ``cpu_features`` are named
    as in ``/proc/cpuinfo``, ``page_bytes`` is the size of the kernel's pages; None where not known.
    ``cuda_driver`` is the driver's version ``(580, 65)``, ``cuda_version`` the newest CUDA that it
    runs ``(13, 0)``. ``origin`` says where the description is from.
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
