"""Models with quantized safetensors: the logits of the same weights stored plainly."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from support.engines.parity import native_error_limit, rms
from support.engines.pools import pool_of
from support.engines.stages import Stages
from support.models import encoded_tensors as encoded
from support.models.expert_models import make_expert_model
from support.models.random_models import make_random_model, random_tokens

from potluck.catalog import describe_model, open_weights, read_profile
from potluck.engines.backends import native_unit
from potluck.engines.loading import plan_stage
from potluck.engines.loading.load import load_stage
from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

NUM_TOKENS = 24
VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "head_dim": 64,
}
GROUP = 128
ENCODED = (
    "_proj.weight",
    "_proj_with_mqa.weight",
    "in_proj_qkvz.weight",
    "in_proj_qkv.weight",
    "in_proj_z.weight",
)
"""How the names of encoded matrices end."""

Encode = Callable[[Any, np.random.Generator], encoded.EncodedWeight]


def fp8(weight: Any, rng: np.random.Generator) -> encoded.EncodedWeight:
    return encoded.fp8(weight)


def fp8_of_rows(weight: Any, rng: np.random.Generator) -> encoded.EncodedWeight:
    return encoded.fp8(weight, per_row=True, scale="weight_scale", scale_dtype=torch.bfloat16)


def gptq(weight: Any, rng: np.random.Generator) -> encoded.EncodedWeight:
    return encoded.gptq(rng, *weight.shape, group=GROUP)


def gptq_with_zeros(weight: Any, rng: np.random.Generator) -> encoded.EncodedWeight:
    return encoded.gptq(rng, *weight.shape, group=GROUP, symmetric=False)


def awq(weight: Any, rng: np.random.Generator) -> encoded.EncodedWeight:
    return encoded.awq(rng, *weight.shape, group=GROUP)


def packed(weight: Any, rng: np.random.Generator) -> encoded.EncodedWeight:
    return encoded.pack_quantized(rng, *weight.shape, group=GROUP)


def compressed(stored_format: str, **weights: object) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": stored_format,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


CASES: dict[str, tuple[Encode, dict[str, Any]]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}),
    "fp8 of rows": (
        fp8_of_rows,
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    ),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}),
    "gptq with zeros": (
        gptq_with_zeros,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False},
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "packed": (
        packed,
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP),
    ),
}


def make_models(
    family: str, settings: dict[str, object], case: str, tmp_path: Path
) -> tuple[Path, Path]:
    """A model with encoded matrices, in several files, and one with their values in float32."""
    encode, quantization_config = CASES[case]
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    make_random_model(family, {**SIZES, **settings}, plain)
    quantized.mkdir()
    rng = np.random.default_rng(3)
    state = load_file(plain / "model.safetensors")
    values, stored = {}, {}
    for name, tensor in state.items():
        is_quantized = name.endswith(ENCODED)
        if not is_quantized:
            # As such models have what is not quantized; each value is the same then.
            values[name] = tensor.to(torch.bfloat16).float()
            stored[name] = tensor.to(torch.bfloat16)
            continue
        weight = encode(tensor, rng)
        values[name] = torch.from_numpy(weight.values).float()
        stem = name.removesuffix("weight")
        stored |= {f"{stem}{end}": part.contiguous() for end, part in weight.tensors.items()}
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (quantized / "config.json").write_text(
        json.dumps({**config, "quantization_config": quantization_config})
    )
    # Scales in another file than what they scale.
    names = sorted(stored)
    index: dict[str, str] = {}
    for part in range(2):
        file = f"model-{part}.safetensors"
        save_file({name: stored[name] for name in names[part::2]}, quantized / file)
        index |= dict.fromkeys(names[part::2], file)
    (quantized / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return plain, quantized


def native_logits(path: Path) -> NDArray[np.float32]:
    description = describe_model(str(path))
    size = StageSize(
        context_tokens=NUM_TOKENS,
        num_blocks=-(-NUM_TOKENS // KV_BLOCK_TOKENS),
        max_step_tokens=NUM_TOKENS,
        num_threads=2,
        num_states=1,
    )
    shard = Shard.whole(2)
    plan = plan_stage(read_profile(description), shard, size)
    with closing(open_weights(description, [shard])) as tensors:
        stage = load_stage(
            description, tensors, plan, unit=native_unit(), pool=pool_of(2), with_key=True
        )
        assert stage.weights_key
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=tuple(random_tokens(NUM_TOKENS, VOCAB)),
        start_position=0,
        block_table=tuple(range(size.num_blocks)),
        sample=True,
        state=0 if any(layer.recurrence for layer in description.config.layers) else None,
    )
    with closing(stage.engine):
        return stage.engine.logits(Step(step_id=StepId(0), slices=(part,)), None)


def transformers_logits(path: Path, tokens: list[int]) -> NDArray[np.float32]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_the_values(case: str, tmp_path: Path) -> None:
    plain, quantized = make_models("llama", {}, case, tmp_path)
    tokens = random_tokens(NUM_TOKENS, VOCAB)
    expected = transformers_logits(plain, tokens)
    description = describe_model(str(quantized))
    assert description.encoding is not None
    source = open_weights(description, [Shard.whole(2)])
    with source, Stages(description.config, source, boundaries=[1]) as stages:
        exact = stages.logits_at_all_positions(tokens)
    # Float32 of the reference engine and of torch, whose sums differ in their order.
    assert np.abs(exact - expected).max() < 2e-5 * np.abs(expected).max()
    actual = native_logits(quantized)
    limit = native_error_limit(
        num_layers=2, is_quantized=not case.startswith("fp8"), are_activations_bf16=True
    )
    # Twice, as weights drawn as integers have heavier tails than the limit is made for.
    assert rms(actual - expected[-1:]) < 2 * limit * rms(expected[-1:])


@pytest.mark.parametrize("case", ["fp8", "gptq"])
def test_experts(case: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
    }
    plain, quantized = make_models("qwen3_moe", settings, case, tmp_path)
    tokens = random_tokens(NUM_TOKENS, VOCAB)
    expected = transformers_logits(plain, tokens)
    description = describe_model(str(quantized))
    source = open_weights(description, [Shard.whole(2)])
    with source, Stages(description.config, source) as stages:
        exact = stages.logits_at_all_positions(tokens)
    assert np.abs(exact - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe_text"])
def test_gated_delta_nets(family: str, tmp_path: Path) -> None:
    """As Qwen publishes them in FP8: a fused matrix, and a tensor for each expert's."""
    settings: dict[str, object] = {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "pad_token_id": None,
        "eos_token_id": None,
    }
    plain, quantized = make_models(family, settings, "fp8", tmp_path)
    tokens = random_tokens(NUM_TOKENS, VOCAB)
    expected = transformers_logits(plain, tokens)
    description = describe_model(str(quantized))
    assert description.encoding is not None
    source = open_weights(description, [Shard.whole(2)])
    with source, Stages(description.config, source, boundaries=[1]) as stages:
        exact = stages.logits_at_all_positions(tokens)
    assert np.abs(exact - expected).max() < 5e-5 * np.abs(expected).max()
    actual = native_logits(quantized)
    limit = native_error_limit(num_layers=2, is_quantized=False, are_activations_bf16=True)
    assert rms(actual - expected[-1:]) < 2 * limit * rms(expected[-1:])


def test_latent_attention(tmp_path: Path) -> None:
    """Heads of 72 rows in blocks of 128, of which keys are transposed."""
    settings: dict[str, object] = {
        "head_dim": 32,
        "num_key_value_heads": 4,
        "kv_lora_rank": 160,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 40,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
    }
    plain, quantized = make_models("deepseek_v3", settings, "fp8", tmp_path)
    tokens = random_tokens(NUM_TOKENS, VOCAB)
    expected = transformers_logits(plain, tokens)
    description = describe_model(str(quantized))
    source = open_weights(description, [Shard.whole(2)])
    up = source.info("model.layers.0.self_attn.kv_b_proj.weight")
    assert (up.shape, up.format) == ((288, 160), TensorFormat.BF16)
    with source, Stages(description.config, source) as stages:
        exact = stages.logits_at_all_positions(tokens)
    assert np.abs(exact - expected).max() < 2e-5 * np.abs(expected).max()


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    settings = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "head_dim": 32,
        "sliding_window": 12,
    }
    model = make_expert_model("gpt_oss", settings, plain)
    quantized.mkdir()
    rng = np.random.default_rng(4)
    values, stored = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            values[name] = stored[name] = tensor
            continue
        # As floats the inputs' dimension comes first, in blocks it is the last.
        experts, inputs, outputs = tensor.shape
        weight = encoded.mxfp4(rng, experts, outputs, inputs, exponents=(122, 125))
        values[name] = torch.from_numpy(weight.values).float().transpose(1, 2).contiguous()
        stored |= {f"{name}_{end}": part for end, part in weight.tensors.items()}
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, quantized / "model.safetensors")
    quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (quantized / "config.json").write_text(
        json.dumps({**model.config, "quantization_config": quantization_config})
    )
    tokens = random_tokens(NUM_TOKENS, VOCAB)
    expected = transformers_logits(plain, tokens)
    description = describe_model(str(quantized))
    weights = read_profile(description).tensors
    for part in ("gate", "up", "down"):
        assert weights[f"layers.0.mlp.experts.{part}.weight"].format is TensorFormat.MXFP4
    source = open_weights(description, [Shard.whole(2)])
    with source, Stages(description.config, source, boundaries=[1]) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert np.abs(actual - expected).max() < 5e-5 * np.abs(expected).max()


def test_files_of_a_shard_are_enough(tmp_path: Path) -> None:
    _, quantized = make_models("llama", {}, "gptq", tmp_path)
    description = describe_model(str(quantized))
    shard = Shard(start_layer=0, end_layer=1, num_layers=2, has_embedding=True, has_head=False)
    profile = read_profile(description, [shard])
    assert not profile.unusable
    assert profile.tensors["layers.0.attn.q.weight"].format.label == "q4_0"
    assert profile.decoding_bytes > 0
    size = StageSize(context_tokens=16, num_blocks=1, max_step_tokens=16, num_threads=1)
    plan = plan_stage(profile, shard, size)
    undecoded = plan_stage(dataclasses.replace(profile, decoding_bytes=0), shard, size)
    extra = plan.memory.staging_bytes - undecoded.memory.staging_bytes
    assert extra == profile.decoding_bytes


def test_a_tensor_that_does_not_fit_its_scales_is_named(tmp_path: Path) -> None:
    _, quantized = make_models("llama", {}, "gptq", tmp_path)
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["group_size"] = 64
    (quantized / "config.json").write_text(json.dumps(config))
    profile = read_profile(describe_model(str(quantized)))
    size = StageSize(context_tokens=16, num_blocks=1, max_step_tokens=16, num_threads=1)
    with pytest.raises(ModelFileError, match=r"layers\.0\.self_attn\.q_proj\.scales"):
        plan_stage(profile, Shard.whole(2), size)


def test_columns_in_an_order_of_their_own_are_refused(tmp_path: Path) -> None:
    """``g_idx`` can be stored so whatever ``desc_act`` says: it is seen when weights are read."""
    _, quantized = make_models("llama", {}, "gptq", tmp_path)
    name = "model.layers.1.mlp.up_proj.g_idx"
    index = json.loads((quantized / "model.safetensors.index.json").read_text())
    path = quantized / index["weight_map"][name]
    tensors = load_file(path)
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, path)
    with pytest.raises(UnsupportedModelError, match="g_idx"):
        native_logits(quantized)
