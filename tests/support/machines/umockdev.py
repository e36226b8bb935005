"""Other machines' devices, shown to the probe by umockdev: real libudev, real reads of /sys.

A machine is ``tests/fixtures/machines/NAME.umockdev``, in the format of ``umockdev-record`` and
with two kinds of lines more:

- ``# …`` is a comment (where the contents come from),
- ``F: /proc/meminfo=MemTotal: 16 kB\\n`` is a file that belongs to no device: below /proc, below
  /sys (``/sys/module``, ``/sys/firmware``), or elsewhere. Backslashes mean what they do in ``A:``.

Bigger ones may lie in directories ``NAME/proc``, ``NAME/sys`` and ``NAME/files`` (all else).

umockdev redirects every access to /sys, but not to /proc, and where it has no device file it lets
those of the real /dev show through. So the function under test gets a ``System`` with roots of its
own for the two; device files are named as if below /dev all the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from support.kernels.build import not_shown

from potluck.types.hardware import DetectorReport

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"

_TIMEOUT_SECONDS = 60


def find_devices(machine: str, detector: str, *, forbidden: Sequence[str] = ()) -> DetectorReport:
    """What ``potluck.probe.detectors.DETECTOR`` finds on a machine.

    ``forbidden`` are device files that the process may not use: it runs as nobody then.
    """
    function = f"potluck.probe.detectors.{detector}:DETECTOR.find"
    answer = call_on_machine(machine, function, forbidden=forbidden)
    return msgspec.json.decode(answer, type=DetectorReport)


def call_on_machine(machine: str, function: str, *, forbidden: Sequence[str] = ()) -> bytes:
    """Call ``module:function`` with the machine's ``System``; what it returns, as JSON."""
    require_umockdev()
    # Of its own, and not pytest's, whose directories nobody else may enter.
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        tree.chmod(0o755)
        _lay_out(machine, tree)
        command = ["umockdev-run", "-d", str(tree / "devices.umockdev"), "--"]
        command += [
            sys.executable,
            "-m",
            "support.machines.machine_child",
            str(tree),
            function,
            *forbidden,
        ]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
        )
    if done.returncode != 0:
        pytest.fail(f"{function} on {machine}: exit {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


def require_umockdev() -> None:
    """Skip the test where umockdev is missing; fail it on CI's machine."""
    if shutil.which("umockdev-run") is None:
        not_shown("there is no umockdev-run (package umockdev)")


def _lay_out(machine: str, tree: Path) -> None:
    """Write what umockdev loads, and the directories ``proc``, ``sys`` and ``files``."""
    for name in ("proc", "sys", "files"):
        (tree / name).mkdir()
        if (MACHINES / machine / name).is_dir():
            shutil.copytree(
                MACHINES / machine / name, tree / name, symlinks=True, dirs_exist_ok=True
            )
    devices = []
    for line in (MACHINES / f"{machine}.umockdev").read_text().splitlines():
        if line.startswith("F: "):
            path, content = _file(line)
            path = tree / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        elif not line.startswith("#"):
            devices.append(line)
    (tree / "devices.umockdev").write_text("".join(f"{line}\n" for line in _blocks(devices)))


def _file(line: str) -> tuple[Path, str]:
    """The place in the tree, and the contents, of an ``F:`` line."""
    name, _, content = line.removeprefix("F: ").partition("=")
    root, _, rest = name.removeprefix("/").partition("/")
    place = Path(root, rest) if root in ("proc", "sys") else Path("files", root, rest)
    return place, content.encode("latin-1", "backslashreplace").decode("unicode_escape")


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    """Lines without blank ones at the start or after another, which umockdev refuses."""
    last = ""
    for line in lines:
        if line or last:
            yield line
        last = line
