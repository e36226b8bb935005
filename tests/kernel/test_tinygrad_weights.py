"""Packed matrices on tinygrad's devices, against the ``gguf`` package's reading of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.kernels.build import not_shown
from support.tinygrad.needs import what_is_missing

from potluck.engines.tinygrad.layout import BLOCKS

pytestmark = pytest.mark.timeout(900)  # compilers take minutes on a busy machine

DEVICES = ("CPU", "CL")
EXTREME = ("Q4_0", "Q5_1", "Q4_K", "Q6_K")
"""Formats whose scales are tried at their ends: of each way that a scale is read one."""
PREFILL = ("BF16", "Q8_0", "Q4_1", "Q4_K")
"""Formats whose kernels for 32 tokens, which take long to compile, are tried as well.

They decode as the kernels for one token do, of which every format is tried: these four have no
scale, a scale, a scale and a minimum, and scales within scales.
"""


def products_on_opencl() -> list[dict[str, Any]]:
    """All formats as a GPU computes them, with as many blocks as threads share, and some more."""
    columns = {1: 134, 32: 256, 256: 512}
    return [
        {
            "kind": "products",
            "format": format.name,
            "num_rows": 37,
            "num_columns": columns[format.block_elements],
            "launch": "threads",
            "has_f16": False,
            "tokens": [1, 32] if format.name in PREFILL else [1],
            "has_extreme_scales": format.name in EXTREME,
        }
        for format in BLOCKS
    ]


def products_on_a_large_gpu() -> list[dict[str, Any]]:
    """Few rows, distributed over as many threads as a device with 132 units wants."""
    product = {"kind": "products", "num_rows": 37, "has_f16": False, "tokens": [1, 32]}
    return [
        {**product, "format": format, "num_columns": columns, "launch": "many threads"}
        for format, columns in (("BF16", 512), ("Q8_0", 1024), ("Q4_K", 512))
    ]


def products_on_a_cpu() -> list[dict[str, Any]]:
    """All formats as tinygrad's CPU backend computes them, with numbers of columns that are odd."""
    columns = {1: 67, 32: 96, 256: 256}
    return [
        {
            "kind": "products",
            "format": format.name,
            "num_rows": 21,
            "num_columns": columns[format.block_elements],
            "launch": "device",
            "has_f16": format.name == "F16",
            "tokens": [1, 32] if format.name in PREFILL else [1],
            "has_extreme_scales": format.name in EXTREME,
        }
        for format in BLOCKS
    ]


def other_cases(device: str) -> list[dict[str, Any]]:
    """What is the same for all formats, and vectors on OpenCL."""
    product = {"kind": "products", "num_rows": 16, "num_columns": 64, "launch": "device"}
    return [
        {**product, "format": "Q4_0", "has_f16": device == "CPU", "tokens": [1]},
        {"kind": "all_bits", "format": "F16", "has_f16": False},
        {"kind": "all_bits", "format": "F16", "has_f16": device == "CPU"},
        {"kind": "all_bits", "format": "BF16", "has_f16": False},
        {"kind": "large", "format": "BF16"},
        {"kind": "large", "format": "F32"},
        {"kind": "refusals"},
    ]


CASES = {
    ("CPU", "products"): products_on_a_cpu(),
    ("CL", "products"): products_on_opencl()[::2],
    # Two cores compile faster than one.
    ("CL", "more products"): products_on_opencl()[1::2] + products_on_a_large_gpu(),
    ("CPU", "others"): other_cases("CPU"),
    ("CL", "others"): other_cases("CL"),
}


class Children:
    """All at once, as compilers take most of the time.

    PoCL's cache of kernels does not bear several processes that fill it with the same: each child
    has its own, in ``folder``.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._started = {
            key: stack.enter_context(self._start(key[0], folder / "-".join(key)))
            for key in CASES
            if not what_is_missing(key[0])
        }
        for key, child in self._started.items():
            assert child.stdin is not None
            child.stdin.write(json.dumps(CASES[key]) + "\n")
            child.stdin.flush()

    def results(self, device: str, what: str) -> list[Any]:
        """Of each case, in order."""
        missing = what_is_missing(device)
        if missing:
            not_shown(missing)
        out, problem = self._started[device, what].communicate(timeout=800)
        assert out, problem[-3000:]
        results: list[Any] = json.loads(out)
        return results

    def _start(self, device: str, pocl_cache: Path) -> subprocess.Popen[str]:
        path = os.pathsep.join(sys.path)
        variables = {"PYTHONPATH": path, "DEV": device, "PARALLEL": "0"}
        return subprocess.Popen(
            [sys.executable, "-m", "support.tinygrad.weights_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "POCL_CACHE_DIR": str(pocl_cache)},
        )


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    with ExitStack() as stack:
        yield Children(stack, tmp_path_factory.mktemp("pocl"))


@pytest.mark.parametrize(("device", "what"), [key for key in CASES if "products" in key[1]])
def test_products_and_rows_are_as_exact_as_float32(
    children: Children, device: str, what: str
) -> None:
    """Takes most of a minute, in which compilers make kernels of every format on both cores."""
    found = children.results(device, what)
    for case, errors in zip(CASES[device, what], found, strict=True):
        assert set(errors) == {*map(str, case["tokens"]), "rows"}
        assert max(errors.values()) <= 1, (case, errors)


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_of_16_bits_are_exact_and_large_ones_stay(children: Children, device: str) -> None:
    product, f16, f16_again, bf16, large_bf16, large_f32, messages = children.results(
        device, "others"
    )
    assert max(product.values()) <= 1
    assert (f16, f16_again, bf16) == (0, 0, 0)
    assert large_bf16 == pytest.approx([1e5, 1e-8, -3e35, 1e35], rel=2**-7)
    assert large_f32 == pytest.approx([1e5, 1e-8, -3e35, 1e35], rel=2**-22)
    begin = "cannot take the weights: "
    assert messages == {
        "unknown": begin + "the program does not use the tensor x",
        "shape": begin + "w is (32, 20), but must be (20, 32)",
        "blocks": begin + "rows of w are not whole q4_k blocks",
        "not begun": begin + "w was not begun",
        "begun twice": begin + "w is written twice",
        "gap": begin + "rows 1 to 11 of w after row 0",
        "bytes": begin + "680 bytes for 10 rows of w",
        "too many": begin + "rows 10 to 21 of w after row 10",
        "ends early": begin + "w ends after row 10",
        "missing": "w v",
        "good": "",
        "written twice": begin + "w is written twice",
        "vector": "",
        "missing at the end": "",
        "vector is": "[1.5, -2.0, 1.2676506002282294e+30]",
        "bytes held": str(2 * 16 * 34 + 3 * 4),
        "missing when cleared": "w v",
        "bytes held when cleared": "0",
    }
