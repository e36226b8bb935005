from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES

from potluck.formats.gguf import GGML_TYPES
from potluck.types.tensor import TensorFormat


def test_names_and_block_sizes_are_those_of_the_gguf_package() -> None:
    assert {kind.value for kind in GGML_QUANT_SIZES} <= GGML_TYPES.keys()
    for kind, sizes in GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[kind.value]
        assert (ours.name, (ours.block_elements, ours.block_bytes)) == (kind.name, sizes)


def test_every_format_has_exactly_one_number() -> None:
    formats = [kind.format for kind in GGML_TYPES.values() if kind.format]
    assert sorted(formats, key=str) == sorted(TensorFormat, key=str)


def test_every_number_has_a_name() -> None:
    """``enum ggml_type`` numbers its types without gaps; the last one of the table is Q2_0."""
    assert sorted(GGML_TYPES) == list(range(43))
    names = [kind.name for kind in GGML_TYPES.values()]
    assert len(set(names)) == len(names)
    assert (names[4], names[5], names[42]) == ("Q4_2", "Q4_3", "Q2_0")
