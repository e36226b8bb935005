"""CPUs that the installed NumPy does not support."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.errors import PotluckError
from potluck.host.cpu_baseline import require_supported_cpu
from potluck.portability.instructions.x86_instructions import level_flags

CORE2 = "fpu mmx sse sse2 pni ssse3 cx16 lahf_lm"
NEHALEM = f"{CORE2} sse4_1 sse4_2 popcnt"


def cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t:\n", "ascii")
    return path


def test_an_old_cpu_is_named_with_a_way_out(tmp_path: Path) -> None:
    old = cpuinfo(tmp_path, CORE2)
    with pytest.raises(PotluckError, match="it lacks popcnt, sse4_1, sse4_2") as caught:
        require_supported_cpu(old, numpy_version="2.4.0", machine="x86_64")
    assert "numpy<2.4" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("flags", "version", "machine"),
    [
        (NEHALEM, "2.4.0", "x86_64"),
        (CORE2, "2.3.5", "x86_64"),
        (CORE2, "2.4.0", "aarch64"),
        ("", "2.4.0", "x86_64"),
        (CORE2, "unknown", "x86_64"),
    ],
)
def test_others_may_go_on(tmp_path: Path, flags: str, version: str, machine: str) -> None:
    require_supported_cpu(cpuinfo(tmp_path, flags), numpy_version=version, machine=machine)


def test_the_flags_are_those_of_the_level(tmp_path: Path) -> None:
    levels = level_flags()
    older = " ".join(levels["x86-64-v1"] | {"pni"})
    with pytest.raises(PotluckError) as caught:
        require_supported_cpu(cpuinfo(tmp_path, older), numpy_version="2.4.0", machine="x86_64")
    missing = levels["x86-64-v2"] - levels["x86-64-v1"] - {"pni"}
    assert caught.value.message.endswith(f"it lacks {', '.join(sorted(missing))}")


def test_a_cpu_that_cannot_be_read_is_left_to_numpy(tmp_path: Path) -> None:
    require_supported_cpu(tmp_path / "cpuinfo", numpy_version="2.4.0", machine="x86_64")
