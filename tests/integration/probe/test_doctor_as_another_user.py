"""The doctor as a user who really may not open a device file."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.kernels.build import not_shown

ROOT = Path(__file__).resolve().parents[3]

# Everything is imported as root: Python itself may lie where nobody else can read it.
SCRIPT = """
import grp, os, pwd, sys
from pathlib import Path
from support.machines.doctor_cases import a_case, a_gpu, a_report
from potluck.probe.doctor.case import Case
from potluck.probe.doctor.device_files import forbidden_files
from potluck.probe.doctor.look import inspect_user
from potluck.host.system import System

root, groups = Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]
os.setgroups(groups)
os.setgid(65534)
os.setuid(65534)
system = System(sys=root, proc=root, dev=root, files=root)
gpu = a_gpu("Arm Mali", "Mali-G610", "panthor", root / "renderD128")
for finding in forbidden_files(a_case(system, a_report(gpu), user=inspect_user())):
    print(finding.message, finding.command, sep="\\n")
"""


def as_nobody(directory: str, *groups: int) -> list[str]:
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT, directory, *map(str, groups)],
        env={"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()


def require_root() -> None:
    if os.geteuid() != 0:
        not_shown("only root can become another user")


def test_a_device_file_of_a_group() -> None:
    require_root()
    video = grp.getgrnam("video").gr_gid
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        file = Path(directory) / "renderD128"
        file.touch()
        os.chown(file, 0, video)
        file.chmod(0o660)
        assert as_nobody(directory) == [
            "Arm Mali-G610: this user does not have permission to open /dev/renderD128 (owned by "
            "group video)",
            "sudo usermod -aG video $USER",
        ]
        assert as_nobody(directory, video) == []
