"""Mixtral (Jiang et al. 2024): Mistral with experts in every layer.

Its GGUF files have the architecture ``llama``.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import HUGGING_FACE_NAMES, FileKind
from potluck.types.model import ModelConfig

# ``MixtralConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "vocab_size": 32_000,
}

BLOCK_SPARSE_NAMES: Mapping[str, str] = {
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.gate": "block_sparse_moe.experts.{expert}.w1",
    "mlp.experts.up": "block_sparse_moe.experts.{expert}.w3",
    "mlp.experts.down": "block_sparse_moe.experts.{expert}.w2",
}
"""Stems of a layer's experts in Mixtral's files."""


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    num_layers = hugging_face.num_hidden_layers(fields)
    experts = hugging_face.read_experts(fields, norm_topk_prob=True, num_layers=num_layers)
    return hugging_face.read_config(
        fields,
        implemented=hugging_face.EXPERT_KEYS | {"sliding_window"},
        sliding_windows=hugging_face.equal_windows(fields),
        experts=(experts,) * num_layers,
    )


MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    from_hugging_face=_from_hugging_face,
    names={FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(BLOCK_SPARSE_NAMES)},
)
