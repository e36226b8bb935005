"""A model with experts, whose files have a tensor for each matrix of each of them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.models.random_models import make_random_model
from support.models.text_models import qwen2_json, write_model_directory

from potluck import Model
from potluck.catalog import describe_model, open_headers, read_profile
from potluck.engines.loading import plan_stage
from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.types.choices import Quantization
from potluck.types.program import Shard
from potluck.types.stage import StageSize

SETTINGS = {
    "vocab_size": 760,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "head_dim": 64,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,  # layer 1 alone
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("experts") / "model"
    directory.mkdir()
    write_model_directory(directory, qwen2_json())
    make_random_model("qwen3_moe", SETTINGS, directory, dtype="bfloat16", max_file_size="1MB")
    return directory


def logprobs(model: Model) -> list[tuple[int, float | None]]:
    generation = model.generate(
        "Once upon a time", max_tokens=12, temperature=0.0, logprobs=True, ignore_eos=True
    )
    return [(piece.token, piece.logprob) for piece in generation.result().pieces]


@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q4_K])
def test_stages_and_mapped_weights_change_nothing(
    model: Path, quantization: Quantization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Model.open(str(model), num_threads=2, quantization=quantization) as loaded:
        expected = logprobs(loaded)
    # One stage has no experts but those of its one layer; then mapped, packed and found again.
    for stages, mmap in ((3, False), (3, True), (3, True)):
        with Model.open(
            str(model), stages=stages, num_threads=2, quantization=quantization, mmap=mmap
        ) as other:
            assert logprobs(other) == expected


def test_a_stage_opens_the_files_of_its_own_experts(model: Path) -> None:
    description = describe_model(str(model))
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    experts = {name for name in index if ".mlp.experts." in name}
    assert len(experts) == 5 * 3
    assert all(".layers.1." in name for name in experts)
    files = {}
    for layer in range(3):
        shard = Shard(
            start_layer=layer,
            end_layer=layer + 1,
            num_layers=3,
            has_embedding=False,
            has_head=False,
        )
        with closing(open_headers(description, [shard])) as tensors:
            files[layer] = {tensor.file.path for tensor in tensors.tensors.values()}
            assert (experts <= set(tensors.names())) == (layer == 1)
    assert (
        files[1] == {str(model / index[name]) for name in index if ".layers.1." in name} != files[0]
    )


def test_a_router_is_in_float32_and_experts_are_quantized(model: Path) -> None:
    description = describe_model(str(model))
    size = StageSize(
        context_tokens=32,
        num_blocks=2,
        max_step_tokens=32,
        num_threads=1,
        quantization=Quantization.Q4_K,
    )
    memory = plan_stage(read_profile(description), Shard.whole(3), size).memory
    weights = dict(memory.weights)
    assert weights["q4_k"] > 5 * 2 * 256 * 256 * 144 // 256
    # The head, and of one of three layers the experts' last matrices and those of the values.
    assert weights["q6_k"] > 5 * 256 * 256 * 210 // 256
    # The router, in a panel of 16 rows, and what comes of bf16 norms stays as it was.
    assert weights["f32"] == 16 * 256 * 4
    assert weights.keys() == {"f32", "q4_k", "q6_k", "bf16"}


def test_a_backend_that_lacks_experts_is_refused_before_anything_is_read(model: Path) -> None:
    description = describe_model(str(model))
    size = StageSize(
        context_tokens=32, num_blocks=2, max_step_tokens=32, num_threads=1, backend="tinygrad:CL"
    )
    profile = read_profile(description)
    with pytest.raises(UnsupportedModelError) as caught:
        plan_stage(profile, Shard.whole(3), size)
    assert caught.value.message == "the backend tinygrad:CL does not support Moe"
    assert caught.value.hint.startswith("use the CPU: give --backend native")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("missing", "experts.3.up_proj.weight is missing"),
        ("other rows", r"experts.3.up_proj.weight is f32 \[128, 256\], but .*experts.0.up_proj"),
        ("other type", r"experts.3.up_proj.weight is f16 \[256, 256\], but .*is f32"),
        ("one more", r"the tensor model.layers.1.mlp.experts.5.up_proj.weight"),
    ],
)
def test_files_whose_experts_are_not_alike_are_refused(
    change: str, problem: str, tmp_path: Path
) -> None:
    write_model_directory(tmp_path, qwen2_json())
    make_random_model("qwen3_moe", SETTINGS, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    values = tensors.pop(name)
    match change:
        case "missing":
            pass
        case "other rows":
            tensors[name] = np.ascontiguousarray(values[:128])
        case "other type":
            tensors[name] = values.astype(np.float16)
        case _:
            tensors |= {name: values, name.replace(".3.", ".5."): values}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises((ModelFileError, UnsupportedModelError), match=problem):
        Model.open(str(tmp_path))
