"""Fingerprints of the software and hardware that a probe result depends on.

A result is valid as long as its fingerprint is unchanged.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

from potluck.types.hardware import Device
from potluck.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The software that uses the devices.

    ``core`` identifies the file of the compiled core, since its version does not change during
    development; it is empty if there is none. ``packages`` are names and versions; a package that
    is not installed has the version "".
    """

    kernel_release: str
    potluck: str
    core: str
    packages: tuple[tuple[str, str], ...]


def installed_software(packages: tuple[str, ...]) -> Software:
    """Return the installed software, without importing any of it."""
    return Software(
        kernel_release=os.uname().release,
        potluck=__version__,
        core=_core_identity(),
        packages=tuple((name, _version(name)) for name in packages),
    )


def fingerprint(
    subject: str,
    devices: tuple[Device, ...],
    software: Software,
    *,
    details: tuple[str, ...] = (),
) -> str:
    """Return the cache key for the result of ``subject`` on ``devices``. Pure.

    ``details`` lists further dependencies, such as an interface or a file. Values that change
    constantly, such as free memory, are not included.
    """
    parts = [
        [software.kernel_release, software.potluck, software.core, software.packages],
        *(
            [d.device_id, d.make, d.chip, d.reported_name, d.driver, sorted(d.versions)]
            for d in devices
        ),
        *([details] if details else []),
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return f"{subject}/{'+'.join(d.device_id for d in devices)}/{digest}"


def _version(package: str) -> str:
    import importlib.metadata  # 30 ms

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _core_identity() -> str:
    """Return path, size and modification time of the compiled core's file, without loading it."""
    spec = importlib.util.find_spec("potluck.kernels")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder) / f"_core{suffix}"
            try:
                status = path.stat()
            except OSError:
                continue
            return f"{path} {status.st_size} {status.st_mtime_ns}"
    return ""
