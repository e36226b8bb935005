"""What the formats' own packages write is what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from support.models.tensor_sources import read_in_pieces

from potluck.formats.gguf import open_gguf
from potluck.formats.gguf_metadata import MetadataArray
from potluck.formats.safetensors import open_safetensors
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)
# The gguf package encodes neither K formats nor IQ formats.
QUANTIZABLE = [
    format for format in COMPUTED_FORMATS if not format.name.endswith(("_K", "_NL", "_XS"))
]


@given(
    tensors=st.dictionaries(NAMES, st.tuples(SHAPES, st.sampled_from([np.float32, np.float16]))),
    seed=st.integers(0, 2**32 - 1),
    piece_rows=st.integers(1, 6),
)
@QUICK
def test_safetensors(
    tmp_path: Path, tensors: dict[str, tuple[tuple[int, ...], type]], seed: int, piece_rows: int
) -> None:
    random = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {
        name: np.asarray(random.standard_normal(shape)).astype(dtype)
        for name, (shape, dtype) in tensors.items()
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path)
    with open_safetensors(path) as source:
        assert set(source.names()) == arrays.keys()
        for name, array in arrays.items():
            assert source.info(name).shape == array.shape
            assert read_in_pieces(source, name, piece_rows) == array.tobytes()


@given(
    tensors=st.dictionaries(
        st.text("abc.", min_size=1, max_size=20),
        st.tuples(st.integers(1, 5), st.integers(1, 3), st.sampled_from(QUANTIZABLE)),
        min_size=1,
        max_size=5,
    ),
    alignment=st.sampled_from([8, 32, 256]),
    tokens=st.lists(st.text(max_size=5), min_size=1),
    seed=st.integers(0, 2**32 - 1),
    piece_rows=st.integers(1, 6),
)
@QUICK
def test_gguf(
    tmp_path: Path,
    tensors: dict[str, tuple[int, int, TensorFormat]],
    alignment: int,
    tokens: list[str],
    seed: int,
    piece_rows: int,
) -> None:
    random = np.random.default_rng(seed)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_array("tokens", tokens)
    stored: dict[str, NDArray[Any]] = {}
    for name, (num_rows, num_blocks, format) in tensors.items():
        rows = random.standard_normal((num_rows, 32 * num_blocks), dtype=np.float32)
        kind = gguf.GGMLQuantizationType[format.name]
        stored[name] = quantize(rows, kind)
        writer.add_tensor(name, stored[name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as source:
        found = source.metadata["tokens"]
        assert isinstance(found, MetadataArray)
        assert list(found) == tokens
        assert list(source.names()) == list(tensors)
        for name, (num_rows, num_blocks, format) in tensors.items():
            info = source.info(name)
            assert (info.shape, info.format) == ((num_rows, 32 * num_blocks), format)
            assert read_in_pieces(source, name, piece_rows) == stored[name].tobytes()
