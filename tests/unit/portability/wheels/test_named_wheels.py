"""Names of projects, and what pip is asked for; a function plays pip."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from potluck.errors import UsageError, WheelDownloadError
from potluck.portability.hosts.host import HostPython
from potluck.portability.wheels.named_wheels import default_wheels_folder, newest_wheels

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]

OLD = HostPython(implementation="cpython", version=(3, 6))
PYTHON = HostPython(implementation="cpython", version=(3, 11))
FREE_THREADED = HostPython(implementation="cpython", version=(3, 13), is_free_threaded=True)


class Pip:
    """Brings a wheel of ``num_bytes`` for each of ``machines``, and Python 3.11."""

    def __init__(self, *machines: str, num_bytes: int = 3) -> None:
        self.machines = machines
        self.num_bytes = num_bytes
        self.calls: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(arguments)
        folder = Path(arguments[arguments.index("--dest") + 1])
        for machine in self.machines:
            platform = f"manylinux_2_39_{machine}"
            python = arguments[arguments.index("--python-version") + 1]
            if platform in arguments and python == "3.11":
                name = f"pack-1.0-py3-none-{platform}.whl"
                (folder / name).write_bytes(bytes(self.num_bytes))
                return subprocess.CompletedProcess(arguments, 0, "", "")
        errors = "WARNING: old pip\nERROR: none satisfies\nERROR: No matching distribution\n\n"
        return subprocess.CompletedProcess(arguments, 1, "", errors)


def test_only_the_machines_that_are_asked_for(tmp_path: Path) -> None:
    pip = Pip("x86_64", "aarch64")
    (found,) = newest_wheels("pack", [PYTHON], tmp_path, machines=["aarch64"], run=pip)
    assert found.name.endswith("aarch64.whl")


def test_the_newest_for_each_machine(tmp_path: Path) -> None:
    pip = Pip("x86_64", "aarch64")
    found = newest_wheels("pack >= 1", [PYTHON], tmp_path / "new", run=pip)
    assert [each.name for each in found] == [
        "pack-1.0-py3-none-manylinux_2_39_x86_64.whl",
        "pack-1.0-py3-none-manylinux_2_39_aarch64.whl",
    ]
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == sorted(
        each.name for each in found
    )
    for call in pip.calls:
        assert call[0] == "download"
        assert call[-1] == "pack>=1"
        assert call[call.index("--python-version") + 1] == "3.11"
        assert call[call.index("--only-binary") + 1] == ":all:"
        assert "--no-deps" in call
    assert "manylinux2014_aarch64" in pip.calls[1]
    assert not any("x86_64" in part for part in pip.calls[1])


def test_one_machine_may_have_none(tmp_path: Path) -> None:
    (found,) = newest_wheels("pack", [PYTHON], tmp_path, run=Pip("aarch64"))
    assert found.name.endswith("aarch64.whl")


def test_one_python_may_have_none(tmp_path: Path) -> None:
    pip = Pip("x86_64")
    (found,) = newest_wheels("pack", [OLD, PYTHON], tmp_path, run=pip)
    assert found.name.endswith("x86_64.whl")
    assert len(pip.calls) == 4


def test_a_free_threaded_python_has_an_abi_of_its_own(tmp_path: Path) -> None:
    pip = Pip("x86_64")
    with pytest.raises(WheelDownloadError):
        newest_wheels("pack", [FREE_THREADED], tmp_path, run=pip)
    newest_wheels("pack", [PYTHON], tmp_path, run=pip)
    free_threaded, ordinary = pip.calls[0], pip.calls[-1]
    assert free_threaded[free_threaded.index("--python-version") + 1] == "3.13"
    assert free_threaded[free_threaded.index("--abi") + 1] == "cp313t"
    assert "--abi" not in ordinary


def test_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(WheelDownloadError, match="No matching distribution") as caught:
        newest_wheels("pack", [PYTHON], tmp_path, run=Pip())
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(("num_bytes", "is_kept"), [(3, True), (4, False)])
def test_the_same_wheel_is_not_replaced(tmp_path: Path, num_bytes: int, is_kept: bool) -> None:
    (first,) = newest_wheels("pack", [PYTHON], tmp_path, run=Pip("x86_64"))
    before = first.stat().st_ino
    (second,) = newest_wheels("pack", [PYTHON], tmp_path, run=Pip("x86_64", num_bytes=num_bytes))
    assert second == first
    assert second.stat().st_size == num_bytes
    assert (second.stat().st_ino == before) is is_kept


@pytest.mark.parametrize(
    "text", ["--index-url=http://x", "-r file", "pack @ http://x/p.whl", "pack[extra]", "a b", ""]
)
def test_what_is_no_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="neither a file nor"):
        newest_wheels(text, [PYTHON], tmp_path, run=lambda _: pytest.fail("pip is run"))


def test_where_they_go() -> None:
    assert default_wheels_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/potluck/wheels")
