"""Models of random weights: what values they have, and that files of every kind are read."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from model_shapes import (
    SHAPES,
    Experts,
    GatedDelta,
    Latent,
    Shape,
    gguf_tensors,
    hugging_face_tensors,
    stored_bytes,
)
from random_gguf import GGUF_TYPES, stored_format, write_gguf
from random_hugging_face import write_hugging_face
from random_weights import STANDARD_DEVIATION, random_rows, random_tensor

from potluck.catalog.description import describe_model, load_tokenizer
from potluck.engines.dequantize import dequantize
from potluck.formats.gguf import open_gguf
from potluck.types.model import HeadNorm, LatentAttentionConfig, ShortConvConfig
from potluck.types.program import ExpertScore
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

SMALL = Shape(
    family="qwen3",
    hidden_size=256,
    intermediate_size=512,
    num_layers=2,
    num_heads=2,
    num_key_value_heads=1,
    head_dim=128,
    vocab_size=2100,
)
SMALL_GATED_DELTA = dataclasses.replace(
    SMALL,
    family="qwen3_5_moe_text",
    num_layers=4,
    experts=Experts(num_experts=4, num_experts_per_token=2, intermediate_size=256, shared_size=256),
    rotary_dim=32,
    gated_delta=GatedDelta(num_heads=4, num_key_heads=2, head_dim=64),
)
SMALL_MIXTURE = dataclasses.replace(
    SMALL,
    family="qwen3_moe",
    has_tied_head=False,
    experts=Experts(num_experts=4, num_experts_per_token=2, intermediate_size=256),
)


@pytest.mark.parametrize("fmt", COMPUTED_FORMATS)
def test_values_have_the_deviation_of_weights(fmt: TensorFormat) -> None:
    rng = np.random.default_rng(0)
    stored = random_rows(rng, fmt, 64, 1024)
    assert stored.shape == (64, fmt.row_bytes(1024))
    values = dequantize(stored.reshape(-1).data, fmt, 1024)
    assert values.std() == pytest.approx(STANDARD_DEVIATION, rel=0.1)
    # Quants without a minimum are not symmetric: their mean is half a step, 0.11 deviations.
    assert abs(values.mean()) < 0.15 * STANDARD_DEVIATION
    assert len(np.unique(stored, axis=0)) == 64


def test_a_tensor_comes_in_pieces() -> None:
    rng = np.random.default_rng(0)
    pieces = list(random_tensor(rng, TensorFormat.Q4_0, (3, 3000, 4096)))
    assert len(pieces) > 1
    assert sum(map(len, pieces)) == 9000
    (norm,) = random_tensor(rng, TensorFormat.F32, (8,))
    assert norm.view(np.float32).tolist() == [[1.0] * 8]


@pytest.mark.slow
@pytest.mark.parametrize("type_name", GGUF_TYPES)
def test_a_gguf_file_of_every_type(tmp_path: Path, type_name: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(SMALL, path, type_name)
    description = describe_model(str(path))
    assert (description.config.family, description.config.vocab_size) == ("qwen3", 2100)
    assert description.config.layers[0].grouped_attention.head_norm is HeadNorm.HEAD
    tokenizer = load_tokenizer(description.files)
    assert max(tokenizer.encode("Once upon a time")) < 2048
    source = open_gguf(path)
    try:
        is_finer = type_name in ("F32", "F16", "BF16", "Q8_0")
        head = TensorFormat[type_name] if is_finer else TensorFormat.Q6_K
        layers = TensorFormat["Q4_K" if type_name == "Q4_K_M" else type_name]
        if type_name == "MXFP4":  # of experts only
            head = layers = TensorFormat.Q8_0
        assert source.info("token_embd.weight").format is head
        assert source.info("blk.1.attn_q.weight").format is layers
        assert source.info("blk.1.attn_q_norm.weight").format is TensorFormat.F32
        last = source.info("output_norm.weight")
        out = bytearray(last.num_bytes)
        source.read_rows(last.name, 0, 1, memoryview(out))
        assert set(np.frombuffer(out, np.float32)) == {1.0}
    finally:
        source.close()


def test_a_gguf_file_of_experts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(SMALL_MIXTURE, path, "Q4_K_M")
    source = open_gguf(path)
    try:
        assert source.info("blk.0.ffn_gate_exps.weight").shape == (4, 256, 256)
        assert source.info("blk.0.ffn_down_exps.weight").shape == (4, 256, 256)
        router = source.info("blk.1.ffn_gate_inp.weight")
        assert (router.shape, router.format) == ((4, 256), TensorFormat.F32)
        assert source.info("output.weight").format is TensorFormat.Q6_K
        assert source.info("token_embd.weight").format is TensorFormat.Q4_K
    finally:
        source.close()


def test_a_gguf_file_with_latent_attention(tmp_path: Path) -> None:
    shape = dataclasses.replace(
        SMALL_MIXTURE,
        family="glm4_moe_lite",
        head_dim=48,
        experts=Experts(
            num_experts=4,
            num_experts_per_token=2,
            intermediate_size=256,
            num_dense_layers=1,
            has_shared=True,
        ),
        latent=Latent(query_rank=64, latent_rank=32, rope_dim=16, nope_dim=32, value_dim=48),
    )
    path = tmp_path / "model.gguf"
    write_gguf(shape, path, "Q8_0")
    config = describe_model(str(path)).config  # which refuses tensors that nothing reads
    attention = config.layers[1].attention
    assert isinstance(attention, LatentAttentionConfig)
    assert (attention.query_rank, attention.latent_rank, attention.value_dim) == (64, 32, 48)
    assert config.layers[0].experts is None
    assert config.layers[1].experts is not None
    assert config.layers[1].experts.score is ExpertScore.SIGMOID


@pytest.mark.parametrize("has_experts", [False, True])
def test_a_gguf_file_of_gated_delta_nets(tmp_path: Path, has_experts: bool) -> None:
    shape = SMALL_GATED_DELTA
    if not has_experts:
        shape = dataclasses.replace(shape, family="qwen3_5_text", experts=None)
    path = tmp_path / "model.gguf"
    write_gguf(shape, path, "Q4_K_M")
    config = describe_model(str(path)).config
    assert [layer.recurrence is not None for layer in config.layers] == [True, True, True, False]
    assert config.layers[3].grouped_attention.has_output_gate
    assert config.ropes[0].rotary_dim == 32
    source = open_gguf(path)
    try:
        assert source.info("blk.0.attn_qkv.weight").format is TensorFormat.Q5_K
        assert source.info("blk.0.attn_gate.weight").format is TensorFormat.Q4_K
        assert source.info("blk.0.ssm_conv1d.weight").format is TensorFormat.F32
        out = bytearray(16)
        source.read_rows("blk.0.ssm_a", 0, 1, memoryview(out))
        assert set(np.frombuffer(out, np.float32)) == {np.float32(-0.1)}
    finally:
        source.close()


def test_a_gguf_file_of_convolutions(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(dataclasses.replace(SMALL, family="lfm2", conv_layers=(1,)), path, "Q4_0")
    layers = describe_model(str(path)).config.layers
    assert [layer.recurrence for layer in layers] == [None, ShortConvConfig(kernel=3)]
    source = open_gguf(path)
    try:
        kernel = source.info("blk.1.shortconv.conv.weight")
        assert (kernel.shape, kernel.format) == ((256, 3), TensorFormat.F32)
        assert source.info("blk.1.shortconv.in_proj.weight").format is TensorFormat.Q4_0
    finally:
        source.close()


def test_hugging_face_layout(tmp_path: Path) -> None:
    write_hugging_face(SMALL, tmp_path, "F16")
    config = describe_model(str(tmp_path)).config
    assert (config.family, config.num_layers, config.layers[0].grouped_attention.head_dim) == (
        "qwen3",
        2,
        128,
    )
    assert config.vocab_size == 2100


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if not shape.is_only_gguf])
def test_both_layouts_hold_the_same_numbers(name: str) -> None:
    shape = SHAPES[name]
    counts = {
        layout: sum(math.prod(tensor.dimensions) for tensor in layout(shape, 4096))
        for layout in (hugging_face_tensors, gguf_tensors)
    }
    assert len(set(counts.values())) == 1


def test_sizes_are_those_of_the_models() -> None:
    # Parameters as the models' cards count them, two bytes each.
    assert stored_bytes(SHAPES["Llama-3.2-1B"]) == 2 * 1_235_814_400
    assert stored_bytes(SHAPES["Llama-3.2-3B"]) == 2 * 3_212_749_824
    assert stored_bytes(SHAPES["Qwen3-0.6B"]) == 2 * 596_049_920
    flash = SHAPES["GLM-4.7-Flash"]
    assert (
        sum(math.prod(each.dimensions) for each in gguf_tensors(flash, 154_880)) == 29_943_393_920
    )
    billions = {
        name: sum(math.prod(each.dimensions) for each in gguf_tensors(SHAPES[name], 248_320)) / 1e9
        for name in ("Qwen3.5-4B", "Qwen3.5-35B-A3B")
    }
    assert billions == {
        "Qwen3.5-4B": pytest.approx(4.2, abs=0.1),
        "Qwen3.5-35B-A3B": pytest.approx(34.7, abs=0.1),
    }


def test_a_model_that_is_only_gguf_has_its_size() -> None:
    tensors = gguf_tensors(SHAPES["LFM2-1.2B"], 65_536)
    assert sum(math.prod(tensor.dimensions) for tensor in tensors) == 1_170_340_608


def test_the_mixture_is_that_of_the_quantizer() -> None:
    shape = dataclasses.replace(SMALL, num_layers=28)
    formats = {
        tensor.name: stored_format(tensor, "Q4_K_M", shape) for tensor in gguf_tensors(shape, 256)
    }
    wide = [
        layer for layer in range(28) if formats[f"blk.{layer}.ffn_down.weight"] is TensorFormat.Q6_K
    ]
    # llama-quant.cpp, use_more_bits: below 28 / 8, from 7 · 28 / 8 on, and (i - 3) % 3 == 2.
    assert wide == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert formats["blk.0.attn_q.weight"] is TensorFormat.Q4_K
