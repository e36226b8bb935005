"""The package without its core: what the build backend puts into a wheel, and into an sdist."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.wheels.errors import BuildError
from tools.wheels.wheel_archive import read_wheel


def package_files(root: Path) -> dict[str, bytes]:
    """Return the files of a wheel of the tree at ``root``, without the core.

    Raises ``BuildError`` if the build backend fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
        options = ("--no-deps", "--no-build-isolation", "--config-settings=wheel.cmake=false")
        _run(*pip, *options, "--wheel-dir", folder, str(root))
        (wheel,) = Path(folder).glob("*.whl")
        return read_wheel(wheel)


def write_sdist(root: Path, folder: Path, *, epoch: int) -> Path:
    """Make the sdist of the tree at ``root`` in ``folder``; its file.

    Raises ``BuildError`` where the build backend failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", "build", "--sdist", "--no-isolation")
    _run(*command, "--outdir", str(folder), str(root), SOURCE_DATE_EPOCH=str(epoch))
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def commit_time(root: Path) -> int:
    """Return the time of the tree's commit in seconds since 1970, as for ``SOURCE_DATE_EPOCH``.

    That variable takes precedence. A tree that is not a git checkout has the time 0.
    """
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    command = ("git", "-C", str(root), "log", "-1", "--format=%ct")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


def _run(*command: str, **environ: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
