"""``potluck wheel check`` as a command: exit codes, and where output goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.portability.elf_bytes import Elf, Need, Symbol
from support.portability.wheel_bytes import write_wheel
from support.processes.command import assert_refused, run_command
from support.schemas import validate_document

OLD, NEW = "ubuntu-18.04-x86_64", "debian-12-x86_64"


def a_wheel(folder: Path) -> str:
    """One that needs what glibc 2.29 added."""
    extension = Elf(
        needed=["libc.so.6", "libm.so.6"],
        symbols=[Symbol(name="exp", version=2)],
        needs=[Need(library="libm.so.6", versions=[("GLIBC_2.29", 2, 0)])],
    )
    tag = "py3-none-manylinux2014_x86_64"
    return str(write_wheel(folder, {"pack/_core.so": extension.build()}, tag=tag))


def test_two_hosts_in_a_document(tmp_path: Path) -> None:
    wheel = a_wheel(tmp_path)
    completed = run_command("wheel", "check", wheel, "--host", NEW, "--host", OLD, "--json")
    assert (completed.returncode, completed.stderr) == (1, "")
    document = json.loads(completed.stdout)
    validate_document(document)
    (found,) = document["wheels"]
    assert [each["verdict"] for each in found["hosts"]] == ["loads", "will not load"]
    assert found["promise"] == "the tag claims compatibility that the files lack"


def test_a_host_that_loads_it(tmp_path: Path) -> None:
    completed = run_command("wheel", "check", a_wheel(tmp_path), "--host", NEW)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.endswith(f"  on {NEW}: installs, loads\n")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["no/such.whl"], "no such file", "give a wheel"),
        (["--host", "debian-99"], "--host debian-99", "debian-1"),
        (["--host", "."], "no host named", ""),
    ],
)
def test_a_wrong_use(tmp_path: Path, arguments: list[str], message: str, hint: str) -> None:
    wheel = [] if arguments[0].endswith(".whl") else [a_wheel(tmp_path)]
    assert_refused(run_command("wheel", "check", *wheel, *arguments), 2, message, hint)


def test_a_circle_of_links_is_no_project(tmp_path: Path) -> None:
    circle = tmp_path / "numpy"
    circle.symlink_to("numpy")
    completed = run_command("wheel", "check", str(circle), "--host", NEW)
    assert_refused(completed, 2, f"{circle}: dangling or circular symbolic link", "give a wheel")


def test_a_folder_of_wheels(tmp_path: Path) -> None:
    """Each project needs one wheel that works, and no more."""
    a_wheel(tmp_path)
    extension = Elf(needed=["libc.so.6"]).build()
    for name in ("pack", "other"):
        write_wheel(
            tmp_path, {f"{name}/_c.so": extension}, name=name, tag="py3-none-manylinux_2_17_x86_64"
        )
    completed = run_command("wheel", "check", str(tmp_path), "--host", OLD, "--short")
    assert (completed.returncode, completed.stderr) == (0, "")
    lines = completed.stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [
        "other-1.0-py3-none-manylinux_2_17_x86_64.whl",
        "pack-1.0-py3-none-manylinux_2_17_x86_64.whl",
    ]

    (tmp_path / "other-1.0-py3-none-manylinux_2_17_x86_64.whl").unlink()
    (tmp_path / "pack-1.0-py3-none-manylinux_2_17_x86_64.whl").unlink()
    assert run_command("wheel", "check", str(tmp_path), "--host", OLD).returncode == 1
