"""The product with a core that has AMX, played: what users of such a machine meet.

cpp/check/emulated_amx.cc says what ``DEFECTS`` do.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.kernels.build import ROOT, built_for_this_cpu
from support.kernels.instruction_sets import IS_AMX_TESTED

DEFECT_VARIABLE = "TEST_AMX_DEFECT"

DEFECTS = {
    "wrong": "wrong products of bf16 weights",
    "faults": "it ended by the signal Illegal instruction",
    "refused": "the Linux kernel denies this process permission to use AMX tiles",
}
"""And what is said of them where the instruction set is chosen."""


# The finder of an editable installation comes before PYTHONPATH.
LEAVE_OUT_THE_EDITABLE_PACKAGE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "potluck" not in type(finder).__module__]
"""


def install_emulated_core(folder: Path) -> dict[str, str]:
    """Copy the package to ``folder`` with the other core; the environment in which it is found."""
    core = built_for_this_cpu("amx/_core*.so")
    without_core = shutil.ignore_patterns("_core*.so")
    shutil.copytree(ROOT / "src" / "potluck", folder / "potluck", ignore=without_core)
    shutil.copy2(core, folder / "potluck" / "kernels")
    (folder / "sitecustomize.py").write_text(LEAVE_OUT_THE_EDITABLE_PACKAGE, "utf-8")
    return {
        "PYTHONPATH": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
    }


def skip_unless_played(defect: str) -> None:
    """The emulator is not asked where the CPU has tiles of its own, and cannot spoil them."""
    if not IS_AMX_TESTED:
        pytest.skip("not shown: this CPU has no AVX-512 BF16, which the kernels of AMX use too")
    if defect == "wrong" and " amx_tile " in Path("/proc/cpuinfo").read_text():
        pytest.skip("not shown: this CPU's own tiles are right")
