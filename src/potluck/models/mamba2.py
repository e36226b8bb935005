"""Mamba-2 (Dao and Gu 2024): a mixer in every layer, without attention and without an MLP.

There are no positions, so the context is limited only by the length that a model was trained with,
which is not in its files.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import gguf, hugging_face, mamba_fields
from potluck.models.family import Family
from potluck.models.fields import MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind
from potluck.types.model import LayerConfig, MambaConfig, ModelConfig
from potluck.types.tensor import TensorSource

# As written by llama.cpp's converter.
_CONTEXT_TOKENS = 2**20

# ``Mamba2Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 64,
    "hidden_size": 4096,
    "n_groups": 8,
    "num_heads": 128,
    "num_hidden_layers": 64,
    "state_size": 128,
    "vocab_size": 32_768,
}
_ACCEPTED: Mapping[str, tuple[object, ...]] = {"rms_norm": (True,)}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    hugging_face.refuse_unsupported(fields, frozenset())
    hidden_size = fields.count("hidden_size", MAX_WIDTH)
    layer = LayerConfig(attention=None, recurrence=_mixer(fields, hidden_size))
    return ModelConfig(
        family=fields.family,
        hidden_size=hidden_size,
        vocab_size=fields.count("vocab_size", MAX_VOCAB),
        max_context_tokens=_CONTEXT_TOKENS,
        norm_epsilon=fields.positive("layer_norm_epsilon", 1e-5),
        layers=(layer,) * fields.count("num_hidden_layers", MAX_LAYERS),
        ropes=(),
        tied_head=fields.flag("tie_word_embeddings", default=False),
    )


def _mixer(fields: Fields, hidden_size: int) -> MambaConfig:
    num_heads = fields.count("num_heads", MAX_HEADS)
    head_dim = fields.count("head_dim", MAX_WIDTH)
    if num_heads * head_dim != fields.count("expand", MAX_WIDTH) * hidden_size:
        raise fields.error("num_heads", "times head_dim must be expand times hidden_size")
    return mamba_fields.mamba_config(
        fields,
        num_heads=num_heads,
        head_dim=head_dim,
        groups_key="n_groups",
        state_key="state_size",
        kernel_key="conv_kernel",
        steps=mamba_fields.step_limits(fields),
        has_conv_bias=fields.flag("use_conv_bias", default=True),
        has_bias=fields.flag("use_bias", default=False),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    return gguf.read_recurrent_config(
        fields,
        source,
        implemented=mamba_fields.GGUF_KEYS,
        recurrence=mamba_fields.mamba_from_gguf(fields, source, (False,)),
    )


MAMBA2 = Family(
    name="mamba2",
    architecture="Mamba2ForCausalLM",
    gguf_architectures=("mamba2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {"attn_norm": "norm", **mamba_fields.hugging_face_names("mixer")},
            stems={"embed": "model.embeddings", "norm": "model.norm_f"},
        ),
        FileKind.GGUF: GGUF_NAMES.changed(mamba_fields.GGUF_NAMES),
    },
)
