"""Backends, and the kinds of devices on which they are tried."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from potluck.types.abilities import BackendAbilities


class DeviceKind(enum.Enum):
    """The kind of device."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLibrary:
    """A system library that a backend finds and opens by itself.

    ``name`` is for display (``libOpenCL.so``). The library is the first file whose whole name
    matches one of ``patterns`` (regular expressions, the preferred one first) in one of
    ``folders``, in which ``{machine}`` stands for the output of ``uname -m``. The environment
    variable ``variable`` may specify the file, or a folder that is searched first, as are the
    folders in ``LD_LIBRARY_PATH``.
    """

    name: str
    patterns: tuple[str, ...]
    folders: tuple[str, ...]
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """A backend, identified by the module that tests it (``python -m``; ``probe.trials.running``).

    ``kinds`` and ``makes`` are the kinds and vendors of devices on which it is tried; no makes
    means all. ``engine`` is the module with its engine (``engines.opening.EngineModule``); a
    backend without one is tried, but cannot hold stages.
    ``packages`` are the distributions whose versions are part of a trial's fingerprint.
    ``api`` is the interface that a device must have, or empty. If ``is_software``, it is only tried
    if software emulation is allowed. ``extra`` is the extra of this distribution that installs the
    packages, or empty. ``libraries`` are the system libraries that it requires. ``abilities`` are
    those of its engines (``EngineCost.abilities``).
    """

    name: str
    module: str
    kinds: frozenset[DeviceKind]
    engine: str = ""
    makes: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()
    api: str = ""
    is_software: bool = False
    extra: str = ""
    libraries: tuple[BackendLibrary, ...] = ()
    abilities: BackendAbilities = field(default_factory=BackendAbilities)
