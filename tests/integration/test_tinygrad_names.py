"""What is used of tinygrad is there, and what is not to be is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.tinygrad.child import BACKENDS, check_names, outcomes

MODULES = ("name_checks",)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", check_names(*MODULES, BACKENDS[0]))
def test_check(backend: str, check: str) -> None:
    error = outcomes(BACKENDS, MODULES)[backend][check]
    assert not error, error


def test_nothing_but_the_adapter_imports_tinygrad() -> None:
    source = Path(__file__).parents[2] / "src"
    importing = [
        path.name
        for path in source.rglob("*.py")
        if re.search(r"^\s*(import|from) tinygrad\b", path.read_text(), re.MULTILINE)
    ]
    assert importing == ["adapter.py"]


def run(code: str, environment: Mapping[str, str]) -> str:
    """What Python writes to stderr."""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"], **environment},
    )
    return done.stderr


def test_tinygrad_is_not_imported_without_a_device() -> None:
    written = run("import potluck.engines.tinygrad.adapter", {})
    assert "EngineError: DEV must name the device to open" in written


def test_another_version_is_refused(tmp_path: Path) -> None:
    info = tmp_path / "tinygrad-0.15.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinygrad\nVersion: 0.15.0\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    written = run(code + "import potluck.engines.tinygrad.adapter", {"DEV": "CPU"})
    assert "EngineError: tinygrad 0.15.0 is installed, but Potluck requires 0.14.0" in written


def test_without_clang_the_cpu_backend_says_so(tmp_path: Path) -> None:
    code = "from potluck.engines.tinygrad.compiled import open_device; open_device()"
    written = run(code, {"DEV": "CPU", "CACHELEVEL": "0", "PATH": str(tmp_path)})
    assert "EngineError: tinygrad requires a program or file that is missing" in written, written


@pytest.mark.parametrize(
    ("backend", "address"),
    [("tinygrad:CPU", ""), ("tinygrad:CL", "/etc/OpenCL/vendors/pocl.icd#0:0")],
)
def test_a_home_that_cannot_be_written(backend: str, address: str, tmp_path: Path) -> None:
    """Nobody can write to /proc, root included. PoCL itself needs a folder of its own."""
    code = f"""
from potluck.engines.tinygrad_environment import tinygrad_environment
from potluck.types.hardware import Interface
import os, sys
interface = Interface(api="opencl", address={address!r}) if {address!r} else None
os.environ.update(tinygrad_environment({backend!r}, interface, ""))
from potluck.engines.tinygrad.compiled import open_device
from potluck.engines.tinygrad.adapter import Tensor
print((Tensor([1.5, 2.0], device=open_device().name) * 2).tolist(), file=sys.stderr)
"""
    homes = {"HOME": "/proc", "XDG_CACHE_HOME": "/proc", "POCL_CACHE_DIR": str(tmp_path)}
    assert run(code, homes).splitlines()[-1] == "[3.0, 4.0]"


def test_an_opencl_without_drivers_is_a_fault_of_the_unit(tmp_path: Path) -> None:
    code = "from potluck.engines.tinygrad.compiled import open_device; open_device()"
    written = run(code, {"DEV": "CL", "CACHELEVEL": "0", "OCL_ICD_VENDORS": str(tmp_path)})
    assert "UnitFaultError: the device's driver failed: OpenCL Error -1001" in written, written


def test_a_library_that_cannot_be_loaded_is_a_fault_of_the_unit(tmp_path: Path) -> None:
    library = tmp_path / "libOpenCL.so"
    library.write_text("not a library")
    code = "from potluck.engines.tinygrad.compiled import open_device; open_device()"
    written = run(code, {"DEV": "CL", "CACHELEVEL": "0", "OPENCL_PATH": str(library)})
    assert "UnitFaultError: the device's driver failed: failed to load library" in written, written


def test_what_drivers_raise_becomes_a_fault() -> None:
    """Memory that is put off, memory at once, and anything else."""
    code = """
from potluck.engines.tinygrad.adapter import tinygrad_errors
from potluck.errors import UnitFaultError
for error in (
    RuntimeError("OpenCL Error -4: CL_MEM_OBJECT_ALLOCATION_FAILURE"),
    RuntimeError("CUDA Error 2, out of memory"),
    MemoryError("Allocation of 3 GB failed"),
    RuntimeError("Device hang detected"),
):
    try:
        with tinygrad_errors():
            raise error
    except UnitFaultError as fault:
        print(fault.fault, file=__import__("sys").stderr)
"""
    faults = run(code, {"DEV": "CPU"}).split("\n")
    assert faults[:4] == ["out of memory"] * 3 + ["driver error"]
