"""What a stage is said to read is what it reads, in this order, however its model is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.cluster.content_files import ContentFolder
from support.models import encoded_tensors as encoded
from support.models.expert_models import make_expert_model, store_experts_in_mxfp4
from support.models.gguf_models import write_gguf_model
from support.models.random_models import make_random_model

from potluck.catalog import (
    ManifestView,
    ModelDescription,
    canonical_source,
    describe_model,
    describe_view,
    open_headers,
    open_weights,
)
from potluck.catalog.needs import announce, header_ends, stage_needs, text_needs
from potluck.engines.dequantize import dequantize
from potluck.formats.gguf_metadata import HEADER_WINDOW_BYTES
from potluck.models.program import program_to_count
from potluck.types.choices import Quantization
from potluck.types.content import FileContent, Manifest
from potluck.types.program import Shard
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.weights.load import load_weights

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
FEW: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
GROUP = 128


def plain(family: str, settings: dict[str, Any] = SIZES) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        made = make_random_model if family in ("llama", "phi3") else make_expert_model
        made(family, {**settings, "pad_token_id": None}, directory, seed=3)
        return directory

    return make


def mxfp4(directory: Path) -> Path:
    store_experts_in_mxfp4(
        make_expert_model("gpt_oss", {**SIZES, **FEW, "intermediate_size": 256}, directory)
    )
    return directory


def with_weights(
    encode: Callable[[Any, np.random.Generator], encoded.EncodedWeight], setting: dict[str, Any]
) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        make_random_model("llama", SIZES, directory)
        rng = np.random.default_rng(1)
        stored: dict[str, Any] = {}
        for name, tensor in load_file(directory / "model.safetensors").items():
            if not name.endswith("_proj.weight"):
                stored[name] = tensor
                continue
            stem = name.removesuffix("weight")
            for end, part in encode(tensor, rng).tensors.items():
                stored[stem + end] = part
        save_file(stored, directory / "model.safetensors")
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(
            json.dumps({**config, "quantization_config": setting})
        )
        return directory

    return make


def gguf(family: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        model = make_random_model(family, SIZES, directory / "made")
        tokens = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": [f"<{number}>" for number in range(97)],
            "tokenizer.ggml.token_type": [1] * 97,
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.eos_token_id": 0,
        }
        formats = {"attn": TensorFormat.Q8_0, "ffn": TensorFormat.Q4_0}
        write_gguf_model(directory / "m", model, tokens, formats=formats, split_max_tensors=9)
        return min(directory.glob("m-00001-of-*.gguf"))

    return make


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": plain("llama"),
    "matrices in one": plain("phi3"),
    "experts one by one": plain("mixtral", SIZES | FEW),
    "transposed stacks": plain("gpt_oss", SIZES | FEW),
    "latent": plain("deepseek_v3", LATENT),
    "mxfp4": mxfp4,
    "fp8": with_weights(
        lambda weight, rng: encoded.fp8(weight),
        {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
    ),
    "gptq": with_weights(
        lambda weight, rng: encoded.gptq(rng, *weight.shape, group=GROUP),
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True},
    ),
    "awq": with_weights(
        lambda weight, rng: encoded.awq(rng, *weight.shape, group=GROUP),
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    ),
    "interleaved heads": gguf("llama"),
    "gguf": gguf("qwen3"),
}

Model = tuple[ContentFolder, Manifest, ModelDescription, ModelDescription]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Served by content, and as it is on the disk."""
    path = MODELS[request.param](tmp_path_factory.mktemp("model"))
    folder = ContentFolder()
    manifest = folder.add_model(str(path))
    home = tmp_path_factory.mktemp("home")
    view = ManifestView(manifest, folder, name="m", environ={"XDG_CACHE_HOME": str(home)})
    return folder, manifest, describe_view(view), describe_model(str(path))


class Sink:
    """Takes everything."""

    def begin(self, info: TensorInfo) -> None:
        pass

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        pass

    def finish(self, name: str) -> None:
        pass


def load(folder: ContentFolder, description: ModelDescription, shard: Shard) -> None:
    """Read what a stage reads, and note that of the weights; the values do not matter."""
    program = program_to_count(description.config, shard, 16)
    with closing(open_weights(description, [shard])) as tensors:
        announce(description, tensors, program)
        folder.reads.clear()
        load_weights(
            program,
            canonical_source(description, tensors, program, dequantize=dequantize),
            Sink(),
            convert=lambda *_: None,
            quantization=Quantization.NONE,
        )


def shards() -> Iterable[Shard]:
    whole = Shard.whole(3)
    yield whole
    middle = Shard(start_layer=1, end_layer=2, num_layers=3, has_embedding=False, has_head=False)
    yield middle
    yield Shard(start_layer=0, end_layer=1, num_layers=3, has_embedding=True, has_head=False)
    yield Shard(start_layer=2, end_layer=3, num_layers=3, has_embedding=False, has_head=True)
    yield from middle.divided((1, 1))
    yield from whole.divided((1, 2, 1))


def offsets(ranges: Iterable[tuple[FileContent, int, int]]) -> dict[str, np.ndarray]:
    """Which bytes of each file are in any range."""
    found: dict[str, np.ndarray] = {}
    for content, start, end in ranges:
        marks = found.setdefault(content.sha256, np.zeros(content.num_bytes, dtype=bool))
        marks[start:end] = True
    return found


@pytest.mark.parametrize("shard", list(shards()), ids=lambda shard: str(shard.part))
def test_what_is_said_is_what_is_read(model: Model, shard: Shard) -> None:
    folder, manifest, description, on_disk = model
    (needs,) = stage_needs(on_disk, manifest, [shard])
    assert (needs,) == stage_needs(description, manifest, [shard])

    folder.wanted.clear()
    load(folder, description, shard)
    contents = {file.content.sha256: file.content for file in manifest.files}
    seen = offsets((contents[sha256], start, end) for sha256, start, end in folder.reads)
    (wanted,) = (needs for _, needs, _ in folder.wanted)
    wanted_offsets = offsets(wanted)
    assert wanted == [each for each in needs if each in wanted]  # in this order
    whole = describe_headers(on_disk, manifest)
    assert set(wanted_offsets) >= set(seen)
    for sha256, marks in wanted_offsets.items():
        header = whole[sha256]  # what was read with it is not asked for again
        assert (marks[header:] == seen.get(sha256, np.zeros(len(marks)))[header:]).all()
    # Besides the weights it is small files and headers, up to the first tensor.
    needed = offsets(needs)
    for sha256, marks in needed.items():
        expected = np.zeros(len(marks), dtype=bool)
        expected[: whole.get(sha256, len(marks))] = True
        if sha256 in wanted_offsets:
            expected |= wanted_offsets[sha256]
        assert (marks == expected).all()


def describe_headers(description: ModelDescription, manifest: Manifest) -> dict[str, int]:
    """The bytes before the first tensor of each file that has any, and what is read with them."""
    content_of = {file.name: file.content for file in manifest.files}
    more = 2 * HEADER_WINDOW_BYTES if manifest.main else 0
    with closing(open_headers(description)) as tensors:
        found = {content_of[Path(file.path).name]: end for file, end in header_ends(tensors)}
    return {each.sha256: min(end + more, each.num_bytes) for each, end in found.items()}


def test_the_order_is_that_of_reading(model: Model) -> None:
    folder, manifest, description, on_disk = model
    load(folder, description, Shard.whole(3))
    headers = describe_headers(on_disk, manifest)
    (needs,) = stage_needs(description, manifest, [Shard.whole(3)])
    firsts = []
    for content, start, _ in needs:
        if content.sha256 in headers and start >= headers[content.sha256]:
            touching = (
                index
                for index, (sha256, begin, _) in enumerate(folder.reads)
                if sha256 == content.sha256 and begin == start
            )
            firsts.append(next(touching))
    assert len(firsts) > 5
    assert firsts == sorted(firsts)


def test_a_tokenizer_is_small(model: Model) -> None:
    _, manifest, description, _ = model
    needs = text_needs(description, manifest)
    (whole,) = stage_needs(description, manifest, [Shard.whole(3)])
    num_bytes = sum(end - start for _, start, end in needs)
    assert num_bytes < sum(end - start for _, start, end in whole) / 3
    assert needs or not manifest.main
