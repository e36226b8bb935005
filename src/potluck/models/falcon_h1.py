"""Falcon-H1 (TII 2025): attention and a Mamba-2 mixer in parallel in every layer, and multipliers
for every matrix.

llama.cpp's converter folds them into the matrices of GGUF files. Its code applies the gate before
the norm, if there is one, as the published models do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face, mamba_fields
from potluck.models.family import Family
from potluck.models.fields import MAX_HEADS, MAX_WIDTH, Fields, unsupported
from potluck.models.layers import with_layers
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind
from potluck.types.model import LayerConfig, MambaConfig, MambaScales, ModelConfig
from potluck.types.tensor import TensorSource

# ``FalconH1Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "mamba_d_conv": 4,
    "mamba_d_head": "auto",
    "mamba_d_ssm": 1024,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128_000,
}
# Other keys of published files, which the code of transformers ignores.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "attn_layer_indices": (),
    "mamba_use_mlp": (True,),
}
_HYBRID = "hybrid"


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    if others := sorted(set(fields.texts("layers_block_type")) - {_HYBRID}):
        raise unsupported(*(f"layers_block_type {name}" for name in others))
    has_bias = fields.truth("attention_bias", default=False)
    config = hugging_face.read_config(
        fields,
        implemented=frozenset({"attention_bias", "embedding_multiplier", "mlp_bias"}),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=fields.truth("mlp_bias", default=False),
    )
    mixer = _mixer(fields, config.hidden_size)
    attention_in = fields.positive("attention_in_multiplier", 1.0)
    if has_bias and attention_in != 1:
        raise unsupported(f"attention_bias with attention_in_multiplier={attention_in}")
    gate, down = _multipliers(fields, "mlp_multipliers", 2)

    def change(_: int, layer: LayerConfig) -> LayerConfig:
        attention, mlp = layer.grouped_attention, layer.mlp
        if mlp is None:
            raise ValueError("a layer without an MLP")
        # The input's multiplier also applies to queries, keys and values.
        attention = dataclasses.replace(
            attention,
            scale=attention.scale * attention_in,
            key_scale=fields.positive("key_multiplier", 1.0) * attention_in,
            output_scale=fields.positive("attention_out_multiplier", 1.0) * attention_in,
        )
        mlp = dataclasses.replace(mlp, gate_scale=gate, output_scale=down)
        return dataclasses.replace(layer, attention=attention, recurrence=mixer, mlp=mlp)

    return dataclasses.replace(
        with_layers(config, change),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        logit_scale=fields.positive("lm_head_multiplier", 1.0),
    )


def _mixer(fields: Fields, hidden_size: int) -> MambaConfig:
    num_heads = fields.count("mamba_n_heads", MAX_HEADS)
    inner = (
        fields.count("mamba_expand", MAX_WIDTH) * hidden_size
        if fields.is_null("mamba_d_ssm")
        else fields.count("mamba_d_ssm", MAX_WIDTH)
    )
    if inner % num_heads:
        raise fields.error("mamba_n_heads", f"must divide {inner} (mamba_d_ssm)")
    head_dim = inner // num_heads
    if fields.get("mamba_d_head") not in ("auto", head_dim):
        what = f"mamba_d_ssm is {inner} and mamba_n_heads {num_heads}"
        raise fields.error("mamba_d_head", f"must be {head_dim}, because {what}")
    has_bias = fields.truth("mamba_proj_bias", default=False)
    ssm_in = fields.positive("ssm_in_multiplier", 1.0)
    if has_bias and ssm_in != 1:
        raise unsupported(f"mamba_proj_bias with ssm_in_multiplier={ssm_in}")
    mixer = mamba_fields.mamba_config(
        fields,
        num_heads=num_heads,
        head_dim=head_dim,
        groups_key="mamba_n_groups",
        state_key="mamba_d_state",
        kernel_key="mamba_d_conv",
        steps=mamba_fields.step_limits(fields),
        has_conv_bias=fields.truth("mamba_conv_bias", default=True),
        has_bias=has_bias,
    )
    gate, x, b, c, step = (each * ssm_in for each in _multipliers(fields, "ssm_multipliers", 5))
    return dataclasses.replace(
        mixer,
        norm_groups=mixer.num_groups if fields.truth("mamba_rms_norm", default=False) else None,
        norm_before_gate=fields.truth("mamba_norm_before_gate", default=True),
        has_output_bias=fields.truth("projectors_bias", default=False),
        scales=MambaScales(gate=gate, x=x, b=b, c=c, step=step),
        output_scale=fields.positive("ssm_out_multiplier", 1.0),
    )


def _multipliers(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if fields.get(key) is None else fields.positives(key, count)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    config = gguf.read_config(
        fields,
        source,
        implemented=mamba_fields.GGUF_KEYS,
        optional_biases=frozenset({"attn_q", "ffn_gate"}),
    )
    mixer = mamba_fields.mamba_from_gguf(fields, source, (False,))
    if "blk.0.ssm_norm.weight" not in names:
        mixer = dataclasses.replace(mixer, norm_groups=None)
    return with_layers(config, lambda _, layer: dataclasses.replace(layer, recurrence=mixer))


FALCON_H1 = Family(
    name="falcon_h1",
    architecture="FalconH1ForCausalLM",
    gguf_architectures=("falcon-h1",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                "mlp_norm": "pre_ff_layernorm",
                "mlp.gate": "feed_forward.gate_proj",
                "mlp.up": "feed_forward.up_proj",
                "mlp.down": "feed_forward.down_proj",
                **mamba_fields.hugging_face_names("mamba", has_scales=True),
            },
            stems={"norm": "model.final_layernorm"},
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            # As written by llama.cpp's converter.
            {"mlp_norm.weight": "ffn_norm", **mamba_fields.GGUF_NAMES},
        ),
    },
)
