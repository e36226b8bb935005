"""Roots of old and new systems, for tests; what cannot be had is reported as not shown."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tools.roots.archive import ArchiveError
from tools.roots.enter import EVERY_FEATURE, Root
from tools.roots.interpreter import portable_python
from tools.roots.made_once import FOLDER, digest, made_once
from tools.roots.system import system
from tools.roots.wheel_site import install_for

T = TypeVar("T")


def require_root(name: str, *, cpu: str = EVERY_FEATURE) -> Root:
    """The root of that name (``tools/roots/package_sets.toml``), its emulated CPU being ``cpu``."""
    return dataclasses.replace(_had(lambda: system(name)), cpu=cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPython:
    """An interpreter in a root, and where it finds its own modules and ours."""

    root: Root
    program: str
    env: Mapping[str, str]

    def run(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, with ``env`` beside what it needs."""
        return self.root.run(
            self.program, *arguments, stdin=stdin, env={**self.env, **env}, timeout_seconds=280
        )


def root_python(root: Root, version: str, **modules: Path) -> RootPython:
    """Python ``version`` (``3.11``) in a root; the folders ``modules`` are its PYTHONPATH.

    The root's own where it has that version, or else the one that starts in all roots.
    """
    program, home, shared = f"/usr/bin/python{version}", "/usr", dict(modules)
    if not (root.path / program.lstrip("/")).exists():
        shared["python"] = _had(lambda: portable_python(root.machine))
        program, home = f"/mnt/python/bin/python{version}", "/mnt/python"
    path = ":".join(f"/mnt/{name}" for name in modules)
    return RootPython(
        root=dataclasses.replace(root, shared=shared),
        program=program,
        env={"PYTHONHOME": home, "PYTHONPATH": path, "HOME": "/tmp", "LC_ALL": "C.UTF-8"},
    )


def require_packages(machine: str, glibc_minor: int, version: str, *requirements: str) -> Path:
    """A folder with what pip installs for such a machine and Python; kept in build/roots."""
    cache_key = "\n".join((machine, str(glibc_minor), version, *requirements))
    path = FOLDER / f"packages-{machine}-{digest(cache_key.encode())}"

    def install() -> None:
        with made_once(path) as made:
            if made:
                install_for(
                    made, requirements, machine=machine, glibc_minor=glibc_minor, python=version
                )

    _had(install)
    return path


def _had(get: Callable[[], T]) -> T:
    """What ``get`` returns. The test shows nothing where it cannot be had, and says so: on CI too,
    since archives are other people's machines.
    """
    try:
        return get()
    except (ArchiveError, OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"not shown: a root cannot be made: {message.strip()[-1000:]}")
