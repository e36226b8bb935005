"""The sizes of published models, and the resulting tensors.

Names and shapes of tensors are those of Hugging Face's checkpoints and of GGUF files
(``convert_hf_to_gguf.py`` of llama.cpp).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_CONTEXT_TOKENS = 8192
"""The maximum context in the metadata of models with random weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The sizes of a mixture of experts, in every layer after the first ``num_dense_layers``.

    ``shared_size`` is the width of one for all tokens, which has a gate of its own. ``has_shared``:
    every token has one more, without a gate, and the router has corrections of its scores.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    num_dense_layers: int = 0
    has_shared: bool = False
    shared_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The ranks and the parts of heads of multi-head latent attention."""

    query_rank: int
    latent_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """The sizes of gated delta nets, in all layers but every fourth one."""

    num_heads: int = 32
    num_key_heads: int = 16
    head_dim: int = 128
    kernel: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that determine those of all tensors of a model.

    ``vocab_size`` is None for that of demo, whose tokenizer all have. ``family`` is the model type
    of Hugging Face: ``llama``, ``qwen3``, ``gemma3_text``, ``lfm2`` or, with experts,
    ``qwen3_moe`` and ``gpt_oss``, or ``qwen3_5_text`` and ``qwen3_5_moe_text``; ``is_only_gguf`` of
    some of them. ``window`` is that of the layers that slide, ``rotary_dim`` what turns of a head,
    if not all. ``conv_layers`` have convolutions of ``kernel`` tokens instead of attention.
    With ``latent`` (``glm4_moe_lite``) keys and values of all heads are of one row, whose sizes
    ``num_key_value_heads`` and ``head_dim`` are.
    """

    family: str = "llama"
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int | None = None
    has_tied_head: bool = True
    experts: Experts | None = None
    window: int | None = None
    latent: Latent | None = None
    conv_layers: tuple[int, ...] = ()
    kernel: int = 3
    rotary_dim: int | None = None
    gated_delta: GatedDelta | None = None

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer has a gated delta net in the place of attention."""
        return self.gated_delta is not None and (layer + 1) % 4 != 0

    @property
    def has_head_norms(self) -> bool:
        """Whether every head of q and k has a norm, as Qwen 3, Gemma 3 and LFM2 have."""
        return self.family.startswith(("qwen3", "gemma3", "lfm2"))

    @property
    def is_only_gguf(self) -> bool:
        """Whether a model of this shape exists as a GGUF file only."""
        return self.family in (
            "gemma3_text",
            "gpt_oss",
            "glm4_moe_lite",
            "lfm2",
            "qwen3_5_text",
            "qwen3_5_moe_text",
        )


_LLAMA_3_2_1B = Shape(
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    num_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=128_256,
)
_LLAMA_3_2_3B = Shape(
    hidden_size=3072,
    intermediate_size=8192,
    num_layers=28,
    num_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128_256,
)

_GPT_OSS_20B = Shape(
    family="gpt_oss",
    hidden_size=2880,
    intermediate_size=2880,
    num_layers=24,
    num_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=201_088,
    has_tied_head=False,
    experts=Experts(num_experts=32, num_experts_per_token=4, intermediate_size=2880),
    window=128,
)
_QWEN3_5_35B_A3B = Shape(
    family="qwen3_5_moe_text",
    hidden_size=2048,
    intermediate_size=512,
    num_layers=40,
    num_heads=16,
    num_key_value_heads=2,
    head_dim=256,
    vocab_size=248_320,
    has_tied_head=False,
    experts=Experts(
        num_experts=256, num_experts_per_token=8, intermediate_size=512, shared_size=512
    ),
    rotary_dim=64,
    gated_delta=GatedDelta(),
)

_GLM_4_7_FLASH = Shape(
    family="glm4_moe_lite",
    hidden_size=2048,
    intermediate_size=10_240,
    num_layers=47,
    num_heads=20,
    num_key_value_heads=1,
    head_dim=576,
    vocab_size=154_880,
    has_tied_head=False,
    experts=Experts(
        num_experts=64,
        num_experts_per_token=4,
        intermediate_size=1536,
        num_dense_layers=1,
        has_shared=True,
    ),
    latent=Latent(query_rank=768, latent_rank=512, rope_dim=64, nope_dim=192, value_dim=256),
)

SHAPES = {
    "100M": Shape(
        hidden_size=768,
        intermediate_size=2048,
        num_layers=16,
        num_heads=12,
        num_key_value_heads=4,
        head_dim=64,
    ),
    "0.5B": Shape(  # the layers of Qwen2.5-0.5B
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_key_value_heads=2,
        head_dim=64,
    ),
    "1B": dataclasses.replace(_LLAMA_3_2_1B, vocab_size=None),  # its layers
    "3B": dataclasses.replace(_LLAMA_3_2_3B, vocab_size=None),
    "8B": Shape(  # Llama-3-8B
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128_256,
        has_tied_head=False,
    ),
    "Qwen3-0.6B": Shape(
        family="qwen3",
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151_936,
    ),
    "Llama-3.2-1B": _LLAMA_3_2_1B,
    "Llama-3.2-3B": _LLAMA_3_2_3B,
    "Qwen3-30B-A3B-4-layers": Shape(  # 4 of its 48
        family="qwen3_moe",
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=4,
        num_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=151_936,
        has_tied_head=False,
        experts=Experts(num_experts=128, num_experts_per_token=8, intermediate_size=768),
    ),
    "Gemma-3-1B": Shape(
        family="gemma3_text",
        hidden_size=1152,
        intermediate_size=6912,
        num_layers=26,
        num_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        vocab_size=262_144,
        window=512,
    ),
    "Gemma-3-4B": Shape(
        family="gemma3_text",
        hidden_size=2560,
        intermediate_size=10240,
        num_layers=34,
        num_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=262_144,
        window=1024,
    ),
    "LFM2-1.2B": Shape(
        family="lfm2",
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=65_536,
        conv_layers=(0, 1, 3, 4, 6, 7, 9, 11, 13, 15),
    ),
    "gpt-oss-20B": _GPT_OSS_20B,
    "gpt-oss-20B-4-layers": dataclasses.replace(_GPT_OSS_20B, num_layers=4),
    "GLM-4.7-Flash": _GLM_4_7_FLASH,
    "GLM-4.7-Flash-6-layers": dataclasses.replace(_GLM_4_7_FLASH, num_layers=6),
    "Qwen3.5-4B": Shape(
        family="qwen3_5_text",
        hidden_size=2560,
        intermediate_size=9216,
        num_layers=32,
        num_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=248_320,
        rotary_dim=64,
        gated_delta=GatedDelta(),
    ),
    "Qwen3.5-35B-A3B": _QWEN3_5_35B_A3B,
    "Qwen3.5-35B-A3B-8-layers": dataclasses.replace(_QWEN3_5_35B_A3B, num_layers=8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A weight's name, and its dimensions, rows before columns.

    A vector is a norm's weight, or has ``value`` everywhere.
    """

    name: str
    dimensions: tuple[int, ...]
    value: float = 1.0


def hugging_face_tensors(shape: Shape, vocab_size: int) -> Iterator[Tensor]:
    """Yield the tensors of a checkpoint, which has separate tensors for each expert."""
    yield Tensor(name="model.embed_tokens.weight", dimensions=(vocab_size, shape.hidden_size))
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        yield from _attention(shape, prefix, _HUGGING_FACE_NAMES)
        mlp = f"{prefix}.mlp"
        if shape.experts is None:
            yield from _gated(shape, shape.intermediate_size, mlp)
            continue
        router = (shape.experts.num_experts, shape.hidden_size)
        yield Tensor(name=f"{mlp}.gate.weight", dimensions=router)
        for expert in range(shape.experts.num_experts):
            inner = shape.experts.intermediate_size
            yield from _gated(shape, inner, f"{mlp}.experts.{expert}")
    yield Tensor(name="model.norm.weight", dimensions=(shape.hidden_size,))
    if not shape.has_tied_head:
        yield Tensor(name="lm_head.weight", dimensions=(vocab_size, shape.hidden_size))


def gguf_tensors(shape: Shape, vocab_size: int) -> Iterator[Tensor]:
    """Yield the tensors of a GGUF file, which combines all experts of a layer, experts first."""
    hidden = shape.hidden_size
    yield Tensor(name="token_embd.weight", dimensions=(vocab_size, hidden))
    for layer in range(shape.num_layers):
        prefix = f"blk.{layer}"
        if shape.gated_delta is not None and shape.is_recurrent(layer):
            yield from _gated_delta_net(shape, shape.gated_delta, prefix)
        elif shape.latent is not None:
            yield from _latent_attention(shape, shape.latent, prefix)
        elif layer in shape.conv_layers:
            yield from _short_conv(shape, prefix)
        else:
            yield from _attention(shape, prefix, _GGUF_NAMES)
        if shape.family == "gemma3_text":
            yield Tensor(name=f"{prefix}.post_attention_norm.weight", dimensions=(hidden,))
            yield Tensor(name=f"{prefix}.post_ffw_norm.weight", dimensions=(hidden,))
        elif shape.family == "gpt_oss":
            yield from _gpt_oss_vectors(shape, prefix)
        inner, kind = shape.intermediate_size, ""
        stacked: tuple[int, ...] = ()
        if shape.experts is not None and layer >= shape.experts.num_dense_layers:
            count = shape.experts.num_experts
            inner, kind, stacked = shape.experts.intermediate_size, "_exps", (count,)
            yield Tensor(name=f"{prefix}.ffn_gate_inp.weight", dimensions=(count, hidden))
            if shape.experts.has_shared:
                yield Tensor(name=f"{prefix}.exp_probs_b.bias", dimensions=(count,))
                yield from _gguf_gated(prefix, "_shexp", (), inner, hidden)
        yield from _gguf_gated(prefix, kind, stacked, inner, hidden)
        if shape.experts is not None and shape.experts.shared_size is not None:
            yield Tensor(name=f"{prefix}.ffn_gate_inp_shexp.weight", dimensions=(hidden,))
            yield from _gguf_gated(prefix, "_shexp", (), shape.experts.shared_size, hidden)
    last_norm = "token_embd_norm" if shape.family == "lfm2" else "output_norm"
    yield Tensor(name=f"{last_norm}.weight", dimensions=(hidden,))
    if not shape.has_tied_head:
        yield Tensor(name="output.weight", dimensions=(vocab_size, hidden))


def _gguf_gated(
    prefix: str, kind: str, stacked: tuple[int, ...], inner: int, hidden: int
) -> Iterator[Tensor]:
    for name, matrix in (
        ("gate", (inner, hidden)),
        ("up", (inner, hidden)),
        ("down", (hidden, inner)),
    ):
        yield Tensor(name=f"{prefix}.ffn_{name}{kind}.weight", dimensions=(*stacked, *matrix))


def _latent_attention(shape: Shape, latent: Latent, prefix: str) -> Iterator[Tensor]:
    """Yield the tensors of one layer of a GGUF file, with the norms before and after it."""
    hidden, heads = shape.hidden_size, shape.num_heads
    for name, dimensions in (
        ("attn_norm", (hidden,)),
        ("attn_q_a", (latent.query_rank, hidden)),
        ("attn_q_a_norm", (latent.query_rank,)),
        ("attn_q_b", (heads * (latent.nope_dim + latent.rope_dim), latent.query_rank)),
        ("attn_kv_a_mqa", (latent.latent_rank + latent.rope_dim, hidden)),
        ("attn_kv_a_norm", (latent.latent_rank,)),
        ("attn_k_b", (heads, latent.latent_rank, latent.nope_dim)),
        ("attn_v_b", (heads, latent.value_dim, latent.latent_rank)),
        ("attn_output", (hidden, heads * latent.value_dim)),
        ("ffn_norm", (hidden,)),
    ):
        yield Tensor(name=f"{prefix}.{name}.weight", dimensions=dimensions)


def _gated_delta_net(shape: Shape, net: GatedDelta, prefix: str) -> Iterator[Tensor]:
    """Yield the tensors of one layer, with the norms before and after it."""
    hidden, values = shape.hidden_size, net.num_heads * net.head_dim
    channels = values + 2 * net.num_key_heads * net.head_dim
    for name, dimensions in (
        ("attn_norm", (hidden,)),
        ("attn_qkv", (channels, hidden)),
        ("attn_gate", (values, hidden)),
        ("ssm_conv1d", (channels, net.kernel)),
        ("ssm_beta", (net.num_heads, hidden)),
        ("ssm_alpha", (net.num_heads, hidden)),
        ("ssm_norm", (net.head_dim,)),
        ("ssm_out", (hidden, values)),
        ("post_attention_norm", (hidden,)),
    ):
        yield Tensor(name=f"{prefix}.{name}.weight", dimensions=dimensions)
    yield Tensor(name=f"{prefix}.ssm_a", dimensions=(net.num_heads,), value=-0.1)
    yield Tensor(name=f"{prefix}.ssm_dt.bias", dimensions=(net.num_heads,))


def _short_conv(shape: Shape, prefix: str) -> Iterator[Tensor]:
    """Yield the tensors of one layer of LFM2, with the norms before and after it."""
    hidden = shape.hidden_size
    for name, dimensions in (
        ("attn_norm", (hidden,)),
        ("shortconv.in_proj", (3 * hidden, hidden)),
        ("shortconv.conv", (hidden, shape.kernel)),
        ("shortconv.out_proj", (hidden, hidden)),
        ("ffn_norm", (hidden,)),
    ):
        yield Tensor(name=f"{prefix}.{name}.weight", dimensions=dimensions)


def _gpt_oss_vectors(shape: Shape, prefix: str) -> Iterator[Tensor]:
    """Yield the biases of all matrices, and the sinks."""
    assert shape.experts is not None
    count, inner = shape.experts.num_experts, shape.experts.intermediate_size
    keys = shape.num_key_value_heads * shape.head_dim
    yield Tensor(name=f"{prefix}.attn_sinks.weight", dimensions=(shape.num_heads,))
    for name, dimensions in (
        ("attn_q", (shape.num_heads * shape.head_dim,)),
        ("attn_k", (keys,)),
        ("attn_v", (keys,)),
        ("attn_output", (shape.hidden_size,)),
        ("ffn_gate_inp", (count,)),
        ("ffn_gate_exps", (count, inner)),
        ("ffn_up_exps", (count, inner)),
        ("ffn_down_exps", (count, shape.hidden_size)),
    ):
        yield Tensor(name=f"{prefix}.{name}.bias", dimensions=dimensions)


_HUGGING_FACE_NAMES = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "post_attention_layernorm",
)
_GGUF_NAMES = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_q_norm",
    "attn_k_norm",
    "ffn_norm",
)


def _attention(shape: Shape, prefix: str, names: tuple[str, ...]) -> Iterator[Tensor]:
    """Yield the tensors of one layer under ``names``, with the norms before and after it."""
    hidden = shape.hidden_size
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    head_norm = (shape.head_dim,) if shape.has_head_norms else None
    has_gate = shape.gated_delta is not None
    all_dimensions = (
        (hidden,),
        (2 * queries if has_gate else queries, hidden),
        (keys, hidden),
        (keys, hidden),
        (hidden, queries),
        head_norm,
        head_norm,
        (hidden,),
    )
    for name, dimensions in zip(names, all_dimensions, strict=True):
        if name == "ffn_norm" and (has_gate or shape.family == "gpt_oss"):
            name = "post_attention_norm"  # what llama.cpp calls the norm before its experts
        if dimensions is not None:
            yield Tensor(name=f"{prefix}.{name}.weight", dimensions=dimensions)


def _gated(shape: Shape, inner: int, prefix: str) -> Iterator[Tensor]:
    hidden = shape.hidden_size
    yield Tensor(name=f"{prefix}.gate_proj.weight", dimensions=(inner, hidden))
    yield Tensor(name=f"{prefix}.up_proj.weight", dimensions=(inner, hidden))
    yield Tensor(name=f"{prefix}.down_proj.weight", dimensions=(hidden, inner))


def weights_bytes(model: Path) -> int:
    """Return the size of a model's weights: of its .gguf file, or of the files in its folder."""
    files = [model] if model.is_file() else model.glob("*.safetensors")
    return sum(path.stat().st_size for path in files)


def stored_bytes(shape: Shape) -> int:
    """Return the size of a model's weights in BF16; a vocabulary of demo's size is not counted."""
    tensors = gguf_tensors(shape, shape.vocab_size or 0)
    return 2 * sum(math.prod(tensor.dimensions) for tensor in tensors)
