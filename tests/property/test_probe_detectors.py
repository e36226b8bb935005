"""No detector raises, whatever happens to the files of a machine."""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines.machine_trees import lay_out_machine, machine_names

from potluck.host.system import System
from potluck.probe import detectors
from potluck.probe.detector import Detector

MODULES = [
    importlib.import_module(f"{detectors.__name__}.{found.name}")
    for found in pkgutil.iter_modules(detectors.__path__)
]
DETECTORS: list[Detector] = [module.DETECTOR for module in MODULES if hasattr(module, "DETECTOR")]

MALFORMED = st.one_of(
    st.binary(max_size=64),
    st.integers(-(2**70), 2**70).map(lambda number: b"%d\n" % number),
    st.integers(0, 2**70).map(lambda number: b"0x%x\n" % number),
    st.text(max_size=32).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"", b"9" * 5000, b"\n" * 100, b"=\n" * 100, b": \n" * 100, b"\xff" * 100]),
)


@contextmanager
def machine_tree(machine: str) -> Iterator[tuple[Path, System]]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        yield root, lay_out_machine(machine, root)


def find_all(system: System) -> int:
    return sum(
        len(detector.find(system).devices) for detector in DETECTORS if detector.name != "cpu"
    )


@pytest.mark.slow
def test_the_machines_are_laid_out_so_that_layers_find_them() -> None:
    """Otherwise the other tests would show nothing."""
    assert {"amd", "intel", "nvidia", "mali", "adreno", "other"} <= {x.name for x in DETECTORS}
    for machine in machine_names():
        with machine_tree(machine) as (_, system):
            assert (find_all(system) > 0) is (machine != "empty-sys"), machine


@pytest.mark.slow
@settings(max_examples=30)
@given(data=st.data())
def test_no_layer_raises_where_files_are_spoilt(data: st.DataObject) -> None:
    with machine_tree(data.draw(st.sampled_from(machine_names()))) as (root, system):
        files = sorted(path for path in root.rglob("*") if path.is_file()) or [root / "sys/none"]
        # Many at once, so that every file of every detector has its turn in few examples.
        for file in data.draw(st.lists(st.sampled_from(files), min_size=10, max_size=30)):
            spoil(file, data)
        for detector in DETECTORS:
            detector.find(system)


def spoil(path: Path, data: st.DataObject) -> None:
    """Overwrite, remove, or put something else in a file's place."""
    if not path.parent.is_dir():  # an earlier one was put in place of what it lay in
        return
    remove(path)
    match data.draw(
        st.sampled_from(["written", "gone", "directory", "dangling", "circle", "file"])
    ):
        case "written":
            path.write_bytes(data.draw(MALFORMED))
        case "gone":
            pass
        case "directory":
            path.mkdir()
        case "dangling":
            path.symlink_to("nowhere")
        case "circle":
            path.symlink_to(path.name)
        case "file":
            remove(path.parent)
            path.parent.write_bytes(b"not a directory")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
