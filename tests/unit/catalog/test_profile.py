"""A model's profile: what its headers say, without open files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models.sparse_models import SparseModel

from potluck.catalog import describe_model, read_profile
from potluck.engines.loading import plan_stage
from potluck.errors import ModelFileError, ModelNotFoundError, PotluckError, UnsupportedModelError
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.tensor import TensorFormat, TensorInfo

NUM_LAYERS = 3
HIDDEN, INNER, VOCAB = 64, 128, 500
QUERIES, KEYS = 64, 32
LAYER_BYTES = 2 * (2 * HIDDEN + HIDDEN * (2 * QUERIES + 2 * KEYS) + 3 * HIDDEN * INNER)
SIZE = StageSize(context_tokens=64, num_blocks=4, max_step_tokens=8, num_threads=1)
MIDDLE = Shard(
    start_layer=1, end_layer=2, num_layers=NUM_LAYERS, has_embedding=False, has_head=False
)

Change = Callable[[dict[str, Any]], object]


def write(directory: Path, *, has_tied_head: bool = False, stored: str = "BF16") -> Path:
    return SparseModel(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_layers=NUM_LAYERS,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=VOCAB,
        max_context_tokens=256,
        has_tied_head=has_tied_head,
        stored=stored,
    ).write(directory)


def change_header(directory: Path, change: Change) -> None:
    """Rewrite the header of the model's only file of weights; the data stay where they are."""
    path = directory / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


@pytest.mark.parametrize("has_tied_head", [False, True])
def test_bytes_are_those_of_each_layer_and_of_the_ends(tmp_path: Path, has_tied_head: bool) -> None:
    profile = read_profile(describe_model(str(write(tmp_path, has_tied_head=has_tied_head))))
    matrix_bytes = 2 * VOCAB * HIDDEN
    assert profile.layer_bytes == ((("bf16", LAYER_BYTES),),) * NUM_LAYERS
    assert profile.embedding_bytes == (("bf16", matrix_bytes),)
    assert profile.head_bytes == (("bf16", matrix_bytes + 2 * HIDDEN),)
    assert ("head.weight" in profile.tensors) != has_tied_head
    assert profile.tensors["layers.2.mlp.down.weight"] == TensorInfo(
        name="layers.2.mlp.down.weight", shape=(HIDDEN, INNER), format=TensorFormat.BF16
    )
    assert profile.name_in_files("layers.2.mlp.down.weight") == (
        "model.layers.2.mlp.down_proj.weight"
    )


def test_bytes_are_by_format(tmp_path: Path) -> None:
    profile = read_profile(describe_model(str(write(tmp_path, stored="Q8_0"))))
    matrices = HIDDEN * (2 * QUERIES + 2 * KEYS) + 3 * HIDDEN * INNER
    expected = (("q8_0", matrices // 32 * 34), ("f32", 4 * 2 * HIDDEN))
    assert profile.layer_bytes == (expected,) * NUM_LAYERS


def test_a_profile_of_a_shard_has_its_tensors_only(tmp_path: Path) -> None:
    description = describe_model(str(write(tmp_path)))
    whole, part = read_profile(description), read_profile(description, [MIDDLE])
    assert part.layer_bytes == ((), whole.layer_bytes[1], ())
    assert part.embedding_bytes == part.head_bytes == ()
    assert part.tensors == {
        name: info for name, info in whole.tensors.items() if name.startswith("layers.1.")
    }
    assert plan_stage(part, MIDDLE, SIZE) == plan_stage(whole, MIDDLE, SIZE)


def rename_a_norm(header: dict[str, Any]) -> None:
    name = "model.layers.0.input_layernorm.weight"
    header["another"] = header.pop(name)


def store_as_f64(header: dict[str, Any]) -> None:
    entry = header["model.layers.0.input_layernorm.weight"]
    entry["dtype"], entry["shape"] = "F64", [HIDDEN // 4]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (rename_a_norm, ModelFileError, "the tensor model.layers.0.input_layernorm.weight [64]"),
        (store_as_f64, UnsupportedModelError, "is stored as F64, which this build cannot use"),
    ],
)
def test_a_bad_tensor_is_an_error_of_the_stages_that_read_it(
    tmp_path: Path, change: Change, kind: type[PotluckError], message: str
) -> None:
    directory = write(tmp_path)
    description = describe_model(str(directory))
    change_header(directory, change)
    profile = read_profile(description)
    assert plan_stage(profile, MIDDLE, SIZE).shard == MIDDLE
    for _ in range(2):  # each error is a new one
        with pytest.raises(kind) as caught:
            plan_stage(profile, Shard.whole(NUM_LAYERS), SIZE)
        assert message in caught.value.message
        assert caught.value.__context__ is None or isinstance(caught.value.__context__, KeyError)
    assert profile.layer_bytes[0] == (("bf16", LAYER_BYTES - 2 * HIDDEN),)


def test_nothing_is_read_after_the_headers(tmp_path: Path) -> None:
    directory = write(tmp_path)
    description = describe_model(str(directory))
    profile = read_profile(description)
    (directory / "model.safetensors").unlink()
    assert plan_stage(profile, MIDDLE, SIZE).read_bytes == LAYER_BYTES
    with pytest.raises(ModelNotFoundError):
        read_profile(description)
