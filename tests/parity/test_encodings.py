from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.models import encoded_tensors as encoded

from potluck.errors import ModelFileError, PotluckError, UnsupportedModelError
from potluck.formats.encodings import integers, parts, read_encoding
from potluck.formats.encodings.encoding import FloatEncoding, IntegerEncoding, Layout
from potluck.formats.encodings.source import EncodedSource
from potluck.formats.safetensors import open_safetensors
from potluck.types.tensor import TensorFormat

RNG_SEED = 5
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def compressed(stored_format: str, **weights: object) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": stored_format,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": {"dynamic": True, "num_bits": 8},
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


PACKED = compressed(
    "pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32
)


def opened(path: Path, settings: dict[str, Any], **tensors: Any) -> EncodedSource:
    encoding = read_encoding({"quantization_config": settings})
    assert encoding is not None
    file = path / "model.safetensors"
    save_file({name.replace("__", "."): value for name, value in tensors.items()}, file)
    return EncodedSource(open_safetensors(file), encoding)


def stored(weight: encoded.EncodedWeight, stem: str = "x") -> dict[str, Any]:
    return {f"{stem}.{ending}": tensor.contiguous() for ending, tensor in weight.tensors.items()}


def read(source: EncodedSource, name: str, step: int | None = None) -> np.ndarray:
    """All rows, ``step`` at a time, in float64, by the ``gguf`` package's formulas."""
    info = source.info(name)
    data = bytearray(info.num_bytes)
    view = memoryview(data)
    for row in range(0, info.num_rows, step or info.num_rows):
        end = min(row + (step or info.num_rows), info.num_rows)
        source.read_rows(name, row, end, view[row * info.row_bytes : end * info.row_bytes])
    rows = np.frombuffer(data, dtype=np.uint8).reshape(info.num_rows, -1)
    if info.format is TensorFormat.F32:
        return rows.view(np.float32).astype(np.float64).reshape(info.shape)
    kind = gguf.GGMLQuantizationType[info.format.name]
    values: np.ndarray = gguf.quants.dequantize(rows, kind).astype(np.float64)
    return values.reshape(info.shape)


def check(source: EncodedSource, weight: encoded.EncodedWeight) -> None:
    """The values are exactly those of ``weight``, however many rows are read at a time."""
    whole = read(source, "x.weight")
    np.testing.assert_array_equal(whole, weight.values)
    for step in (1, 7, 48):
        np.testing.assert_array_equal(read(source, "x.weight", step), whole)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (FP8, {}),
        ({**FP8, "scale_fmt": "ue8m0"}, {"scale_dtype": torch.bfloat16}),
        ({**FP8, "weight_block_size": [64, 32]}, {"block": (64, 32)}),
        ({**FP8, "weight_block_size": None}, {"block": None}),
        ({**FP8, "weight_block_size": None, "activation_scheme": "static"}, {"block": None}),
        ({"quant_method": "fbgemm_fp8"}, {"per_row": True, "scale": "weight_scale"}),
        (
            compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
            {"per_row": True, "scale": "weight_scale", "scale_dtype": torch.bfloat16},
        ),
        (
            compressed(
                "float-quantized",
                num_bits=8,
                type="float",
                strategy="block",
                block_structure=[128, 128],
            ),
            {"scale": "weight_scale"},
        ),
        (
            compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
            {"block": None, "scale": "weight_scale"},
        ),
    ],
)
def test_fp8_is_shown_as_bf16(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    weight = encoded.fp8(
        torch.randn(300, 192, generator=torch.Generator().manual_seed(1)), **options
    )
    source = opened(
        tmp_path, settings, **stored(weight), x__input_scale=torch.ones(1), other=torch.ones(3, 4)
    )
    with source:
        assert set(source.names()) == {"x.weight", "other"}
        assert source.info("x.weight").format is TensorFormat.BF16
        assert source.info("x.weight").shape == (300, 192)
        check(source, weight)
        np.testing.assert_array_equal(read(source, "other"), np.ones((3, 4)))


def test_all_codes_of_fp8(tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(8, 32).view(torch.float8_e4m3fn)
    settings = {**FP8, "weight_block_size": None}
    with opened(tmp_path, settings, x__weight=codes, x__weight_scale_inv=torch.ones(())) as source:
        np.testing.assert_array_equal(
            read(source, "x.weight"), codes.to(torch.bfloat16).double().numpy()
        )


def test_fp8_of_several_matrices(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    matrices = [encoded.fp8(torch.randn(200, 160, generator=generator)) for _ in range(3)]
    name = "mlp.experts.gate_up_proj"
    tensors = {
        name: torch.stack([each.tensors["weight"] for each in matrices]),
        f"{name}_scale_inv": torch.stack([each.tensors["weight_scale_inv"] for each in matrices]),
    }
    with opened(tmp_path, FP8, **tensors) as source:
        assert list(source.names()) == [name]
        np.testing.assert_array_equal(
            read(source, name, 77), np.stack([each.values for each in matrices])
        )


@pytest.mark.parametrize(
    ("settings", "options", "target"),
    [
        (GPTQ, {}, TensorFormat.Q4_0),
        ({**GPTQ, "checkpoint_format": "gptq_v2"}, {"zero_offset": 0}, TensorFormat.Q4_0),
        ({**GPTQ, "sym": False}, {"symmetric": False}, TensorFormat.Q5_0),
        ({**GPTQ, "group_size": 32}, {"group": 32}, TensorFormat.Q4_0),
        ({**GPTQ, "group_size": -1, "desc_act": True}, {"group": 384}, TensorFormat.Q4_0),
        ({**GPTQ, "bits": 8}, {"num_bits": 8}, TensorFormat.Q8_0),
        ({**GPTQ, "desc_act": True, "static_groups": True}, {}, TensorFormat.Q4_0),
    ],
)
def test_gptq(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], target: TensorFormat
) -> None:
    weight = encoded.gptq(np.random.default_rng(RNG_SEED), 96, 384, **options)
    with opened(tmp_path, settings, **stored(weight), x__bias=torch.ones(96)) as source:
        assert set(source.names()) == {"x.weight", "x.bias"}
        assert source.info("x.weight").format is target
        check(source, weight)


def test_awq(tmp_path: Path) -> None:
    weight = encoded.awq(np.random.default_rng(RNG_SEED), 96, 384)
    with opened(tmp_path, AWQ, **stored(weight)) as source:
        assert source.info("x.weight").format is TensorFormat.Q5_0
        check(source, weight)


@pytest.mark.parametrize(
    ("weights", "options", "target"),
    [
        ({"group_size": 32}, {}, TensorFormat.Q4_0),
        ({"group_size": 128}, {"group": 128, "dtype": torch.float16}, TensorFormat.Q4_0),
        ({"group_size": 32, "symmetric": False}, {"symmetric": False}, TensorFormat.Q5_0),
        ({"strategy": "channel", "num_bits": 8}, {"group": None, "num_bits": 8}, TensorFormat.Q8_0),
    ],
)
def test_compressed_integers(
    tmp_path: Path, weights: dict[str, Any], options: dict[str, Any], target: TensorFormat
) -> None:
    weight = encoded.pack_quantized(np.random.default_rng(RNG_SEED), 40, 384, **options)
    usual = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    settings = compressed("pack-quantized", **{**usual, **weights})
    with opened(tmp_path, settings, **stored(weight)) as source:
        assert list(source.names()) == ["x.weight"]
        assert source.info("x.weight").format is target
        check(source, weight)


def test_integers_of_a_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(RNG_SEED)
    values = torch.from_numpy(rng.integers(-128, 128, (40, 64), dtype=np.int8))
    scales = torch.from_numpy(rng.uniform(0.01, 0.02, (40, 1))).to(torch.bfloat16)
    settings = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
    with opened(tmp_path, settings, x__weight=values, x__weight_scale=scales) as source:
        assert source.info("x.weight").format is TensorFormat.Q8_0
        np.testing.assert_array_equal(
            read(source, "x.weight", 3), (values.double() * scales.double()).numpy()
        )


def test_mxfp4(tmp_path: Path) -> None:
    weight = encoded.mxfp4(np.random.default_rng(RNG_SEED), 3, 40, 96)
    name = "mlp.experts.gate_up_proj"
    tensors = {f"{name}_{ending}": tensor for ending, tensor in weight.tensors.items()}
    with opened(tmp_path, {"quant_method": "mxfp4"}, **tensors) as source:
        assert list(source.names()) == [name]
        assert source.info(name).format is TensorFormat.MXFP4
        assert source.info(name).shape == (3, 40, 96)
        for step in (1, 13, 120):
            np.testing.assert_array_equal(read(source, name, step), weight.values)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_matrices_larger_than_a_band(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    rng = np.random.default_rng(RNG_SEED)
    weight = (encoded.gptq if method == "gptq" else encoded.awq)(rng, 96, 256)
    monkeypatch.setattr(integers, "BAND_BYTES", 96 * 256 // 2 // 5)
    monkeypatch.setattr(integers, "_READ_BYTES", 500)
    monkeypatch.setattr(integers, "PIECE_ELEMENTS", 256 * 13)
    with opened(tmp_path, GPTQ if method == "gptq" else AWQ, **stored(weight)) as source:
        check(source, weight)
        # Backwards too: a band that was left is gathered again.
        info = source.info("x.weight")
        out = memoryview(bytearray(info.row_bytes))
        for row in (95, 0, 50):
            source.read_rows("x.weight", row, row + 1, out)
            rows = np.frombuffer(out, dtype=np.uint8).reshape(1, -1)
            found = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[info.format.name])
            np.testing.assert_array_equal(found[0], weight.values[row])


def test_what_decoding_holds_is_said(tmp_path: Path) -> None:
    weight = encoded.gptq(np.random.default_rng(RNG_SEED), 96, 384)
    with opened(tmp_path, GPTQ, **stored(weight), x__bias=torch.ones(96)) as source:
        packed = weight.tensors["qweight"].numel() * 4
        assert source.decoding_bytes("x.weight") >= packed + parts.PIECE_BYTES
        assert source.decoding_bytes("x.bias") == 0
        assert {each.name for each in source.stored_parts("x.weight")} == {
            "x.qweight",
            "x.qzeros",
            "x.scales",
            "x.g_idx",
        }


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"bits": 4}, "quantization_config={bits}"),
        ({"quant_method": "bitsandbytes"}, "quantization_config=bitsandbytes"),
        ({**FP8, "weight_block_size": [1, 16]}, "weight_block_size=[1, 16] (fewer than 32"),
        ({**FP8, "fmt": "e5m2"}, "quantization_config.fmt=e5m2"),
        ({**FP8, "expert_dtype": "fp4"}, "quantization_config.expert_dtype=fp4"),
        ({**FP8, "rotation": "hadamard"}, "quantization_config.rotation=hadamard"),
        ({**GPTQ, "desc_act": True}, "quantization_config.desc_act=True"),
        ({**GPTQ, "bits": 3}, "quantization_config.bits=3"),
        ({**GPTQ, "bits": 8, "sym": False}, "quantization_config.bits=8, with zero points"),
        ({**GPTQ, "group_size": 48}, "quantization_config.group_size=48 (not a multiple of 32)"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "quantization_config.checkpoint_format=marlin"),
        ({**GPTQ, "dynamic": {"-:.*": {}}}, "quantization_config.dynamic={-:.*}"),
        ({**AWQ, "version": "gemv"}, "quantization_config.version=gemv"),
        ({**AWQ, "zero_point": False}, "quantization_config.zero_point=False"),
        ({**PACKED, "format": "nvfp4-pack-quantized"}, "format=nvfp4-pack-quantized"),
        ({**PACKED, "transform_config": {"R1": {}}}, "quantization_config.transform_config={R1}"),
        ({**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (
            compressed("pack-quantized", num_bits=4, type="int", strategy="group", actorder="group")
            | {"ignore": []},
            "weights.actorder=group",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read_encoding({"quantization_config": settings})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([], "must be an object"),
        ({**FP8, "weight_block_size": [128]}, "weight_block_size must be two positive numbers"),
        ({**GPTQ, "bits": "4"}, "bits must be an integer"),
        ({**GPTQ, "sym": "yes"}, "sym must be true or false"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        ({**PACKED, "config_groups": [1]}, "config_groups must be an object"),
    ],
)
def test_settings_that_make_no_sense(settings: Any, problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        read_encoding({"quantization_config": settings or [1]})


PUBLISHED: dict[str, tuple[dict[str, Any], FloatEncoding | IntegerEncoding]] = {
    "Qwen/Qwen3-4B-FP8": (
        {
            "activation_scheme": "dynamic",
            "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        FloatEncoding(block=(128, 128)),
    ),
    "deepseek-ai/DeepSeek-V3.1": (
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        FloatEncoding(block=(128, 128)),
    ),
    "mistralai/Ministral-3-8B-Instruct-2512": (
        {
            "activation_scheme": "static",
            "dequantize": False,
            "modules_to_not_convert": ["model.vision_tower", "lm_head"],
            "quant_method": "fp8",
            "weight_block_size": None,
        },
        FloatEncoding(),
    ),
    "MiniMaxAI/MiniMax-M2": (
        {
            "activation_scheme": "dynamic",
            "fmt": "float8_e4m3fn",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
        },
        FloatEncoding(block=(128, 128)),
    ),
    "zai-org/GLM-4.5-Air-FP8": (
        {
            "config_groups": {
                "group_0": {
                    "input_activations": {
                        "actorder": None,
                        "block_structure": None,
                        "dynamic": True,
                        "group_size": None,
                        "num_bits": 8,
                        "observer": None,
                        "observer_kwargs": {},
                        "strategy": "token",
                        "symmetric": True,
                        "type": "float",
                    },
                    "output_activations": None,
                    "targets": ["Linear"],
                    "weights": {
                        "actorder": None,
                        "block_structure": None,
                        "dynamic": False,
                        "group_size": None,
                        "num_bits": 8,
                        "observer": "minmax",
                        "observer_kwargs": {},
                        "strategy": "channel",
                        "symmetric": True,
                        "type": "float",
                    },
                }
            },
            "format": "float-quantized",
            "global_compression_ratio": 1.5,
            "ignore": ["lm_head", "model.layers.1.mlp.gate"],
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "sparsity_config": {},
            "transform_config": {},
            "version": "0.10.3",
        },
        FloatEncoding(),
    ),
    "RedHatAI/gemma-3-4b-it-quantized.w4a16": (
        {
            "config_groups": {
                "group_0": {
                    "input_activations": None,
                    "output_activations": None,
                    "targets": ["Linear"],
                    "weights": {
                        "actorder": "weight",
                        "block_structure": None,
                        "dynamic": False,
                        "group_size": 128,
                        "num_bits": 4,
                        "observer": "minmax",
                        "observer_kwargs": {},
                        "strategy": "group",
                        "symmetric": True,
                        "type": "int",
                    },
                }
            },
            "format": "pack-quantized",
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        },
        IntegerEncoding(layout=Layout.ROWS, num_bits=4, group_columns=128, is_symmetric=True),
    ),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": (
        {
            "batch_size": 1,
            "bits": 4,
            "block_name_to_quantize": None,
            "cache_block_outputs": True,
            "damp_percent": 0.01,
            "dataset": None,
            "desc_act": False,
            "exllama_config": {"version": 1},
            "group_size": 128,
            "max_input_length": None,
            "model_seqlen": None,
            "module_name_preceding_first_block": None,
            "modules_in_block_to_quantize": None,
            "pad_token_id": None,
            "quant_method": "gptq",
            "sym": True,
            "tokenizer": None,
            "true_sequential": True,
            "use_cuda_fp16": False,
            "use_exllama": True,
        },
        IntegerEncoding(
            layout=Layout.GPTQ, num_bits=4, group_columns=128, is_symmetric=True, zero_offset=1
        ),
    ),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": (
        {
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": None,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        IntegerEncoding(layout=Layout.AWQ, num_bits=4, group_columns=128, is_symmetric=False),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_published_models(name: str) -> None:
    settings, expected = PUBLISHED[name]
    found = read_encoding({"quantization_config": settings})
    assert found is not None
    assert (found.floats, found.integers).count(expected) == 1
    assert (found.floats, found.integers).count(None) == 1


def test_no_encoding() -> None:
    assert read_encoding({}) is None
    assert read_encoding({"quantization_config": {}}) is None
    assert read_encoding({"quantization_config": None}) is None
    found = read_encoding({"text_config": {"quantization_config": FP8}})
    assert found is not None
    assert found.method == "fp8"


def gptq_parts(**changed: Any) -> dict[str, Any]:
    weight = encoded.gptq(np.random.default_rng(RNG_SEED), 32, 256)
    return stored(dataclasses.replace(weight, tensors={**weight.tensors, **changed}))


@pytest.mark.parametrize(
    ("settings", "tensors", "problem"),
    [
        (GPTQ, gptq_parts(scales=torch.ones(2, 31).half()), "'x.scales' has shape [2, 31]"),
        (GPTQ, gptq_parts(scales=torch.full((2, 32), 1e-9)), "scales outside the range of f16"),
        (GPTQ, gptq_parts(scales=torch.full((2, 32), 1e9)), "scales outside the range of f16"),
        (GPTQ, gptq_parts(qweight=torch.ones(32, 32)), "'x.qweight' is F32, but must be I32"),
        (GPTQ, gptq_parts(qzeros=torch.ones(2, 4).int()), "contradicts sym"),
        (GPTQ, gptq_parts(g_idx=torch.arange(256).flip(0).int() // 128), "desc_act, g_idx"),
        ({**GPTQ, "group_size": 96}, gptq_parts(), "rows of 256 in groups of 96 columns"),
        (FP8, {"x.weight": torch.ones(8, 8), "x.weight_scale_inv": torch.ones(1, 1)}, "scales"),
        (FP8, {"x.weight": torch.ones(8, 8).to(torch.float8_e4m3fn)}, "has 0 scale tensors"),
        (
            FP8,
            {
                "x.weight": torch.ones(8, 8).to(torch.float8_e4m3fn),
                "x.weight_scale_inv": torch.ones(3, 1),
            },
            "has the shape [3, 1], which cannot scale [8, 8]",
        ),
        (
            {"quant_method": "mxfp4"},
            {"x_blocks": torch.zeros(2, 3, 16).byte(), "x_scales": torch.zeros(2, 4).byte()},
            "'x_scales' has shape [2, 4]",
        ),
        ({"quant_method": "mxfp4"}, {"x_blocks": torch.zeros(2, 3, 16).byte()}, "is missing"),
        (
            GPTQ,
            gptq_parts() | {"x.weight": torch.ones(32, 256)},
            "is stored twice",
        ),
    ],
)
def test_tensors_that_contradict_one_another(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, Any], problem: str
) -> None:
    with opened(tmp_path, settings, **tensors) as source:
        name = next(name for name in source.names() if name.startswith("x"))
        with pytest.raises(PotluckError) as caught:
            read(source, name)
        assert problem in str(caught.value)


def test_what_belongs_to_no_weight_is_shown(tmp_path: Path) -> None:
    """So that it is refused as a tensor that nothing reads."""
    tensors = {
        "x.qzeros": torch.ones(2),
        "y_scales": torch.ones(2),
        "z.weight_scale": torch.ones(1),
    }
    for settings in (GPTQ, FP8, {"quant_method": "mxfp4"}):
        with opened(tmp_path, settings, **tensors) as source:
            assert set(source.names()) == set(tensors)
