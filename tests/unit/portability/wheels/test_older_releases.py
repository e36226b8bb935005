"""Which release of a project works on a host; a function plays pip, and another one the check."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.portability.linking import a_host

from potluck.errors import UsageError
from potluck.portability.hosts.host import HostPython
from potluck.portability.wheels.named_wheels import MAX_CHECKED, newest_usable_release

PYTHON = HostPython(implementation="cpython", version=(3, 8))


class Index:
    """Has ``versions`` of the project pack; ``downloads`` are those that were asked for."""

    def __init__(self, versions: Sequence[str]) -> None:
        self.versions = versions
        self.downloads: list[str] = []
        self.platforms: set[str] = set()

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        pairs = itertools.pairwise(arguments)
        self.platforms |= {value for option, value in pairs if option == "--platform"}
        if arguments[0] == "index":
            listed = f"pack ({self.versions[0]})\nAvailable versions: {', '.join(self.versions)}\n"
            return subprocess.CompletedProcess(arguments, 0, listed, "")
        name, _, version = arguments[-1].partition("==")
        self.downloads.append(version)
        wheel = Path(arguments[arguments.index("--dest") + 1], f"{name}-{version}-py3-none-any.whl")
        wheel.write_bytes(b"")
        return subprocess.CompletedProcess(arguments, 0, "", "")


def newest(text: str, index: Index, folder: Path, newest_good: int, *unusable: str) -> str:
    """Releases up to 1.``newest_good`` work."""

    def is_usable(wheel: Path) -> bool:
        return int(wheel.name.split("-")[1].split(".")[1]) <= newest_good

    host = a_host(libc_version=(2, 31))
    return newest_usable_release(
        text, host, PYTHON, folder, is_usable, unusable=unusable, run=index
    )


VERSIONS = [f"1.{minor}" for minor in range(30, -1, -1)]


@pytest.mark.parametrize("newest_good", [30, 29, 16, 15, 6, 1, 0])
def test_the_newest_that_works(tmp_path: Path, newest_good: int) -> None:
    index = Index(VERSIONS)
    assert newest("pack", index, tmp_path, newest_good) == f"1.{newest_good}"
    assert len(index.downloads) <= MAX_CHECKED
    assert index.downloads[0] == "1.30"


def test_none_works(tmp_path: Path) -> None:
    index = Index(VERSIONS)
    assert newest("pack", index, tmp_path, -1) == ""
    assert len(index.downloads) <= MAX_CHECKED


def test_installers_of_the_host_are_asked(tmp_path: Path) -> None:
    index = Index(VERSIONS)
    newest("pack", index, tmp_path, 30)
    assert "manylinux_2_31_x86_64" in index.platforms
    assert "manylinux2014_x86_64" in index.platforms
    assert "manylinux_2_32_x86_64" not in index.platforms
    assert not any("aarch64" in each for each in index.platforms)


def test_versions_are_in_their_order(tmp_path: Path) -> None:
    index = Index(["1.9", "no version", "1.10"])
    assert newest("pack", index, tmp_path, 30) == "1.10"


def test_what_a_requirement_does_not_allow_is_not_looked_at(tmp_path: Path) -> None:
    index = Index(VERSIONS)
    assert newest("pack>=1.20", index, tmp_path, 6) == ""
    assert all(int(each.split(".")[1]) >= 20 for each in index.downloads)


def test_another_than_the_one_asked_for(tmp_path: Path) -> None:
    index = Index(VERSIONS)
    assert newest("pack==1.30", index, tmp_path, 6, "1.30") == "1.6"
    assert "1.30" not in index.downloads


def test_an_index_that_tells_nothing(tmp_path: Path) -> None:
    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, 1, "", "ERROR: unknown command")

    assert newest_usable_release("pack", a_host(), PYTHON, tmp_path, bool, run=run) == ""


def test_no_wheels_for_musl_are_looked_for(tmp_path: Path) -> None:
    host = a_host(libc="musl", libc_version=(1, 2))
    index = Index(VERSIONS)
    assert newest_usable_release("pack", host, PYTHON, tmp_path, bool, run=index) == ""
    assert index.platforms == set()


def test_what_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        newest_usable_release("a b", a_host(), PYTHON, tmp_path, bool, run=Index(VERSIONS))
