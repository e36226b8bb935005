"""Which tensor of a file belongs where."""

from __future__ import annotations

import pytest
from support.models.configs import make_config

from potluck.errors import UnsupportedModelError
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind, stored_tensor
from potluck.models.program import build_program
from potluck.models.registry import (
    refuse_unread_tensors,
    stored_weights,
    with_stored_head,
)
from potluck.models.rope import rope_tables
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard, WeightSpec
from potluck.types.tensor import StoredTensor

LAYER_NAMES = {
    "attn_norm.weight": ("input_layernorm.weight", "attn_norm.weight"),
    "attn.q.weight": ("self_attn.q_proj.weight", "attn_q.weight"),
    "attn.q.bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "attn.k.weight": ("self_attn.k_proj.weight", "attn_k.weight"),
    "attn.v.weight": ("self_attn.v_proj.weight", "attn_v.weight"),
    "attn.o.weight": ("self_attn.o_proj.weight", "attn_output.weight"),
    "attn.o.bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "attn.q_norm.weight": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "attn.k_norm.weight": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "mlp_norm.weight": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "mlp.gate.weight": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "mlp.up.weight": ("mlp.up_proj.weight", "ffn_up.weight"),
    "mlp.down.weight": ("mlp.down_proj.weight", "ffn_down.weight"),
    "mlp.down.bias": ("mlp.down_proj.bias", "ffn_down.bias"),
    "mlp.router.weight": ("mlp.gate.weight", "ffn_gate_inp.weight"),
}


def whole_program(config: ModelConfig) -> Program:
    return build_program(
        config, Shard.whole(config.num_layers), context_tokens=8, ropes=rope_tables(config, 8)
    )


@pytest.mark.parametrize("canonical", LAYER_NAMES)
def test_names_of_a_layer(canonical: str) -> None:
    hugging_face, gguf = LAYER_NAMES[canonical]
    name = f"layers.17.{canonical}"
    assert HUGGING_FACE_NAMES.find(name).name == f"model.layers.17.{hugging_face}"
    assert GGUF_NAMES.find(name).name == f"blk.17.{gguf}"


def test_experts_are_tensors_of_their_own_or_one() -> None:
    weight = WeightSpec(name="layers.2.mlp.experts.up.weight", shape=(3, 32, 64))
    in_gguf = stored_tensor(make_config(), GGUF_NAMES, weight, {})
    assert (in_gguf.stored_names, in_gguf.is_stacked) == (("blk.2.ffn_up_exps.weight",), False)
    alone = stored_tensor(make_config(), HUGGING_FACE_NAMES, weight, {})
    assert alone.is_stacked
    assert alone.stored_names == tuple(
        f"model.layers.2.mlp.experts.{expert}.up_proj.weight" for expert in range(3)
    )


@pytest.mark.parametrize(
    ("canonical", "hugging_face", "gguf"),
    [
        ("embed.weight", "model.embed_tokens.weight", "token_embd.weight"),
        ("norm.weight", "model.norm.weight", "output_norm.weight"),
        ("head.weight", "lm_head.weight", "output.weight"),
    ],
)
def test_names_outside_layers(canonical: str, hugging_face: str, gguf: str) -> None:
    assert HUGGING_FACE_NAMES.find(canonical).name == hugging_face
    assert GGUF_NAMES.find(canonical).name == gguf


def test_names_that_are_not_canonical() -> None:
    for name in ("lm_head.weight", "layers.0.attn.z.weight"):
        with pytest.raises(KeyError):
            GGUF_NAMES.find(name)


def test_every_tensor_of_a_program_in_its_order() -> None:
    config = make_config(qkv_bias=True)
    program = whole_program(config)
    stored = stored_weights(config, program.weights, FileKind.HUGGING_FACE)
    assert [tensor.canonical_name for tensor in stored] == [w.name for w in program.weights]
    assert all(tensor.interleaved is None for tensor in stored)


def test_gguf_interleaves_q_and_k_of_llama() -> None:
    config = make_config(qkv_bias=True)
    stored = stored_weights(config, whole_program(config).weights, FileKind.GGUF)
    interleaved = {
        tensor.stored_names[0]: tensor.interleaved.num_heads
        for tensor in stored
        if tensor.interleaved is not None
    }
    assert interleaved == {
        f"blk.{layer}.attn_{name}.{part}": heads
        for layer in (0, 1)
        for name, heads in (("q", 4), ("k", 2))
        for part in ("weight", "bias")
    }


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_gguf_does_not_interleave_the_others(family: str) -> None:
    config = make_config(family=family, qk_norm=True)
    stored = stored_weights(config, whole_program(config).weights, FileKind.GGUF)
    assert all(tensor.interleaved is None for tensor in stored)


def test_a_head_that_is_tied_is_the_embedding() -> None:
    config = make_config(tied_head=True)
    shard = Shard(start_layer=2, end_layer=2, num_layers=2, has_embedding=False, has_head=True)
    program = build_program(config, shard, context_tokens=8, ropes=rope_tables(config, 8))
    assert stored_weights(config, program.weights, FileKind.GGUF) == (
        StoredTensor(
            canonical_name="norm.weight", stored_names=("output_norm.weight",), shape=(32,)
        ),
        StoredTensor(
            canonical_name="embed.weight", stored_names=("token_embd.weight",), shape=(50, 32)
        ),
    )


@pytest.mark.parametrize(
    ("kind", "head"), [(FileKind.HUGGING_FACE, "lm_head.weight"), (FileKind.GGUF, "output.weight")]
)
def test_a_head_that_is_stored_is_used(kind: FileKind, head: str) -> None:
    for is_tied in (False, True):
        config = make_config(tied_head=is_tied)
        assert not with_stored_head(config, {"embed", head}, kind).tied_head
        assert with_stored_head(config, {"embed"}, kind) is config


def test_unread_tensors_are_refused() -> None:
    config = make_config()
    names = [
        tensor.stored_names[0]
        for tensor in stored_weights(config, whole_program(config).weights, FileKind.HUGGING_FACE)
    ]
    old = "model.layers.0.self_attn.rotary_emb.inv_freq"
    refuse_unread_tensors(config, [*names, old], FileKind.HUGGING_FACE)
    for unread in ("model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight"):
        with pytest.raises(UnsupportedModelError, match=unread) as caught:
            refuse_unread_tensors(config, [*names, unread], FileKind.HUGGING_FACE)
        assert caught.value.missing == (f"the tensor {unread}",)
    with pytest.raises(UnsupportedModelError, match=r"c, 2 more tensors"):
        refuse_unread_tensors(config, [*names, *"edcba"], FileKind.HUGGING_FACE)


def test_rope_factors_of_a_gguf_file_are_read_elsewhere() -> None:
    config = make_config()
    refuse_unread_tensors(config, ["rope_freqs.weight", "output.weight"], FileKind.GGUF)
    with pytest.raises(UnsupportedModelError, match=r"rope_factors_long\.weight"):
        refuse_unread_tensors(config, ["rope_factors_long.weight"], FileKind.GGUF)
