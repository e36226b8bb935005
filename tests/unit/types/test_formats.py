"""The one table of formats, ``TensorFormat``, and what must agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from potluck.engines.abilities import NATIVE_ABILITIES, TINYGRAD_ABILITIES
from potluck.engines.dequantize import _DEQUANTIZERS
from potluck.engines.tinygrad.layout import BLOCKS
from potluck.formats.gguf import GGML_TYPES
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

ROOT = Path(__file__).resolve().parents[3]
CORE = ROOT / "cpp" / "kernels"


def names_in(path: Path, pattern: str) -> list[str]:
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return re.findall(r"[A-Z]+[0-9][A-Z0-9_]*", found[1])


def test_the_core_has_the_formats_with_kernels_in_this_order() -> None:
    names = [format.name for format in COMPUTED_FORMATS]
    assert names_in(CORE / "kernels.h", r"enum class Format : uint8_t \{(.*?)\}") == names
    listed = names_in(
        CORE / "variants.h", r"(#define POTLUCK_FLOAT_FORMATS.*?)#define POTLUCK_FORMATS\(X\)"
    )
    assert listed == names


def test_the_sizes_of_the_core_are_these() -> None:
    text = (CORE / "kernels.cc").read_text(encoding="utf-8")
    rows = re.findall(r'\{"(\w+)", (\d+), (\d+)\}', text)
    assert [(label, int(columns), int(size)) for label, columns, size in rows] == [
        (format.label, format.block_elements, format.block_bytes) for format in COMPUTED_FORMATS
    ]


def test_every_format_is_decoded_and_named_in_files() -> None:
    assert set(_DEQUANTIZERS) == set(TensorFormat)
    assert {each.format for each in GGML_TYPES.values() if each.format} == set(TensorFormat)


def test_backends_compute_with_what_they_have() -> None:
    assert NATIVE_ABILITIES.formats == set(COMPUTED_FORMATS)
    assert TINYGRAD_ABILITIES.formats == set(BLOCKS) <= set(COMPUTED_FORMATS)


@pytest.mark.parametrize("format", TensorFormat, ids=lambda format: format.label)
def test_a_format_is_loaded_as_one_with_kernels(format: TensorFormat) -> None:
    assert format.loaded_as.has_kernels
    assert format.loaded_as is (format if format.has_kernels else TensorFormat.Q8_0)
    assert format.label == format.name.lower()
