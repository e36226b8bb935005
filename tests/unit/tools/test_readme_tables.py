"""The tables of the READMEs are what their tool makes of committed records."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from potluck.engines.backends import BACKENDS
from potluck.types.backend import DeviceKind
from tools.readme_tables import (
    COMPARISONS,
    ENGLISH,
    INSTRUCTION_SETS,
    INTERFACES,
    PAGES,
    PEERS,
    RESULTS,
    ROOT,
    compared,
    cpus_tested,
    gpus_tested,
    page,
    results,
    shown,
    with_blocks,
)


@pytest.fixture
def documents() -> dict[str, Any]:
    return {name: json.loads((RESULTS / name).read_text()) for name in (*COMPARISONS, PEERS)}


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == page(name), "python -m tools.readme_tables"


def test_every_loss_is_shown(documents: dict[str, Any]) -> None:
    lost = [row for row in compared(documents) if row.ratio < 1]
    assert lost
    assert all(row in shown(documents) for row in lost)


def test_a_new_loss_comes_into_the_table(documents: dict[str, Any]) -> None:
    changed = copy.deepcopy(documents)
    row = next(
        each
        for each in changed[COMPARISONS[1]]["shapes"][0]["rows"]
        if each["claim"] == "prefill" and each["type_name"] == "Q8_0"
    )
    row["ours"] = row["theirs"] / 2
    text = results(changed, ENGLISH)
    assert "| Qwen3-0.6B Q8_0, prompt of 512 tokens |" in text
    assert "×0.50 (slower)" in text
    assert "| Qwen3-0.6B Q8_0, prompt of 512 tokens |" not in results(documents, ENGLISH)


def test_every_instruction_set_with_kernels_is_named() -> None:
    """Each has a file of linear kernels; AMX has one for each type of numbers."""
    files = {path.stem for path in (ROOT / "cpp" / "kernels" / "linear").glob("*.cc")}
    isas = {"amx" if name.startswith("amx_") else name for name in files} - {"scalar", "pack"}
    assert isas == {isa for names in INSTRUCTION_SETS.values() for isa in names}


def test_every_interface_to_gpus_is_named() -> None:
    apis = {each.api for each in BACKENDS if DeviceKind.GPU in each.kinds}
    assert apis == set(INTERFACES)


@pytest.mark.parametrize(
    ("isas", "expected"),
    [
        ((), "under emulation only"),
        (("neon",), "NEON on real CPUs, the rest under emulation"),
        (("neon", "dotprod", "i8mm"), "on Neoverse-N1"),
    ],
)
def test_cpus_are_named_once_all_instruction_sets_ran(isas: tuple[str, ...], expected: str) -> None:
    run = {"cpu": "Neoverse-N1", "results": [{"isa": isa} for isa in (*isas, "avx2")]}
    assert cpus_tested("aarch64", [run], ENGLISH) == expected


def test_real_gpus_are_named_instead_of_emulated_ones() -> None:
    emulated = {"device": "PoCL", "backend": "tinygrad:CL", "works": True, "is_software": True}
    cpu = {"device": "Xeon", "backend": "tinygrad:CPU", "works": True, "is_software": False}
    broken = {"device": "Arc", "backend": "tinygrad:CL", "works": False, "is_software": False}
    runs = [{"units": [emulated, cpu, broken]}]
    assert gpus_tested(runs, ENGLISH) == "OpenCL emulated on a CPU; not yet on real GPUs"
    real = {"device": "A10", "backend": "tinygrad:CUDA", "works": True, "is_software": False}
    assert gpus_tested([*runs, {"units": [real]}], ENGLISH) == "on A10"


def test_a_page_without_a_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 blocks named results"):
        with_blocks("# Title\n", {"results": "x"})


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 100
