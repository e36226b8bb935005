"""Which wheels a machine gets: those that are here, and from the index what is not."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from potluck.cluster.invitations.software import installed_wheel, selection
from potluck.cluster.invitations.software.local_wheels import LocalWheels
from potluck.cluster.invitations.software.selection import Software, choose_software
from potluck.errors import PotluckError, WheelDownloadError
from potluck.portability.hosts.host import HostPython
from potluck.portability.hosts.shipped import load_shipped_host
from potluck.portability.planning.index import IndexFile
from potluck.version import __version__

HOST = dataclasses.replace(
    load_shipped_host("debian-12-x86_64"),
    name="board",
    python=HostPython(implementation="cpython", version=(3, 11)),
)
ANY = "py3-none-any"


def make(folder: Path, name: str, version: str, *requires: str, tag: str = ANY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        lines += [f"Requires-Dist: {each}" for each in requires]
        archive.writestr(f"{info}/METADATA", "\n".join([*lines, ""]))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class PlayedIndex:
    """The wheels of a folder, as an index that counts what is fetched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fetched: list[str] = []

    def files(self, project: str) -> tuple[IndexFile, ...]:
        found = sorted(self._folder.glob(f"{project.replace('-', '_')}-*.whl"))
        return tuple(IndexFile(filename=each.name, url=each.as_uri()) for each in found)

    def metadata(self, file: IndexFile) -> bytes | None:
        return None

    def fetch(self, file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        self.fetched.append(file.filename)
        path.write_bytes((self._folder / file.filename).read_bytes())

    def num_bytes(self, file: IndexFile) -> int | None:
        return None

    def fetch_range(self, file: IndexFile, start: int, end: int, path: Path) -> bool:
        return False


@dataclasses.dataclass
class Kitchen:
    """A node with wheels in ``here``, an index of those in ``there``, and a store."""

    folder: Path
    index: PlayedIndex
    num_opened: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def here(self) -> Path:
        return self.folder / "here"

    @property
    def there(self) -> Path:
        return self.folder / "there"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @contextmanager
    def opened(self) -> Iterator[PlayedIndex]:
        self.num_opened += 1
        yield self.index

    def choose(self) -> Software:
        local = LocalWheels(HOST, folders=[self.here], store=self.store, needs=None)
        return choose_software(
            local, self.opened, store=self.store, needs=None, note=self.notes.append
        )


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kitchen:
    """Nothing is installed but ``gadget`` 1.0, of which there is no wheel here."""
    versions = {"gadget": "1.0", "tool": "2.0", "pip": "26.0"}

    class Installed:
        def __init__(self, version: str) -> None:
            self.version = version

    def installed(name: str) -> Installed | None:
        return Installed(versions[name]) if name in versions else None

    monkeypatch.setattr(selection, "installed_distribution", installed)
    monkeypatch.setattr(
        "potluck.cluster.invitations.software.local_wheels.installed_distribution",
        lambda name: None,
    )
    monkeypatch.setattr(installed_wheel, "is_of_this_node", lambda path: True)
    made = Kitchen(tmp_path, PlayedIndex(tmp_path / "there"))
    make(made.here, "potluck", __version__, "tool>=1", "gadget")
    make(made.here, "pip", "26.0")
    make(made.here, "tool", "2.0")
    return made


def chosen(software: Software) -> dict[str, str]:
    return {each.project: each.version for each in software.wheels}


def test_what_is_here_is_enough_without_an_index(kitchen: Kitchen) -> None:
    make(kitchen.here, "gadget", "1.0", "tool; python_version < '3.12'", "other; extra == 'x'")
    found = kitchen.choose()
    assert chosen(found) == {"potluck": __version__, "pip": "26.0", "tool": "2.0", "gadget": "1.0"}
    assert kitchen.num_opened == 0
    for each in found.wheels:
        assert each.path.stat().st_size == each.num_bytes


def test_the_index_gives_the_version_that_runs_here_and_only_once(kitchen: Kitchen) -> None:
    make(kitchen.there, "gadget", "1.0")
    make(kitchen.there, "gadget", "1.5")
    make(kitchen.there, "tool", "9.0")
    assert chosen(kitchen.choose())["gadget"] == "1.0"
    assert kitchen.index.fetched == ["gadget-1.0-py3-none-any.whl"]
    again = kitchen.choose()
    assert chosen(again) == chosen(kitchen.choose())
    assert chosen(again)["tool"] == "2.0"
    assert kitchen.index.fetched == ["gadget-1.0-py3-none-any.whl"]  # the store has it now
    assert kitchen.notes == ["asking the index for wheels of gadget for board"]


def test_another_version_is_taken_where_that_does_not_fit(kitchen: Kitchen) -> None:
    make(kitchen.there, "gadget", "1.0", tag="cp313-cp313-manylinux_2_17_x86_64")
    make(kitchen.there, "gadget", "0.9", "tool<2")
    make(kitchen.there, "tool", "1.8")
    make(kitchen.there, "pip", "25.0")
    assert chosen(kitchen.choose()) == {
        "potluck": __version__,
        "pip": "25.0",
        "tool": "1.8",
        "gadget": "0.9",
    }


def test_what_fits_nowhere_is_named(kitchen: Kitchen) -> None:
    with pytest.raises(PotluckError, match="gadget"):
        kitchen.choose()


def test_potluck_itself_must_be_here(kitchen: Kitchen) -> None:
    for path in kitchen.here.glob("potluck-*"):
        path.unlink()
    make(kitchen.here, "potluck", __version__, tag="cp311-cp311-manylinux_2_17_aarch64")
    make(kitchen.there, "potluck", __version__)  # of which nobody knows the sources
    with pytest.raises(WheelDownloadError) as refused:
        kitchen.choose()
    assert (
        f"no wheel of potluck {__version__} here is compatible with board "
        "(x86_64, glibc 2.36, Python 3.11)" in (refused.value.message)
    )
    assert "aarch64" in refused.value.message
    assert "--wheels" in refused.value.hint
    assert kitchen.num_opened == 0
