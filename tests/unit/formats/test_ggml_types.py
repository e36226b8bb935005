from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES

from potluck.formats.ggml_types import GGML_TYPES
from potluck.types.tensor import TensorFormat


def test_names_and_block_sizes_are_those_of_the_gguf_package() -> None:
    assert {kind.value for kind in GGML_QUANT_SIZES} <= GGML_TYPES.keys()
    for kind, sizes in GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[kind.value]
        assert (ours.name, (ours.block_elements, ours.block_bytes)) == (kind.name, sizes)


def test_every_format_has_exactly_one_number() -> None:
    formats = [kind.format for kind in GGML_TYPES.values() if kind.format]
    assert sorted(formats, key=str) == sorted(TensorFormat, key=str)
