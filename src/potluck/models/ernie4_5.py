"""ERNIE 4.5 (Baidu, ERNIE Team 2025): Llama with interleaved rope pairs.

Models with experts have softmax routing with corrections and shared experts, after some dense
layers. The multi-token prediction layer is skipped.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    Fields,
    unsupported,
)
from potluck.models.names import INTERLEAVED_NAMES, SHARED_EXPERTS, FileKind
from potluck.types.model import ExpertsConfig, MlpConfig, ModelConfig

# ``Ernie4_5Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    has_biases = fields.flag("use_bias", default=False)
    return hugging_face.read_config(
        fields.with_defaults(_DEFAULTS),
        implemented=frozenset({"use_bias"}),
        qkv_bias=has_biases,
        output_bias=has_biases,
        mlp_bias=has_biases,
    )


# ``Ernie4_5_MoeConfig`` of transformers.
_MOE_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "max_position_embeddings": 131_072,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "num_attention_heads": 20,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "vocab_size": 103_424,
}
# With these values, the keys of published files that transformers ignores change nothing.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "use_bias": (False,),
    "moe_gate": ("topk",),
    "moe_gate_act": ("softmax",),
    "moe_use_aux_free": (True,),
}
_MOST_NORM_MIN = 1e-12
"""Lower bound of the divisor of shares. No sum of softmax shares is as small."""


def _moe_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_MOE_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    if fields.positive("moe_norm_min", _MOST_NORM_MIN) > _MOST_NORM_MIN:
        raise unsupported(f"moe_norm_min={fields.get('moe_norm_min')}")
    return hugging_face.read_config(
        fields,
        implemented=frozenset(),
        experts=_experts(fields),
    )


def _experts(fields: Fields) -> tuple[ExpertsConfig | None, ...]:
    """Return the experts of every ``moe_layer_interval``-th layer in the range that has any."""
    num_layers = hugging_face.num_hidden_layers(fields)
    experts = hugging_face.read_experts(
        fields,
        norm_topk_prob=True,
        count_key="moe_num_experts",
        used_key="moe_k",
        width_key="moe_intermediate_size",
        num_layers=num_layers,
    )
    num_shared = fields.count("moe_num_shared_experts", MAX_EXPERTS, 2, minimum=0)
    experts = dataclasses.replace(
        experts,
        has_score_correction_bias=True,
        shared=MlpConfig(width=num_shared * experts.width) if num_shared else None,
    )
    interval = fields.count("moe_layer_interval", MAX_LAYERS, 1)
    first = fields.count("moe_layer_start_index", MAX_LAYERS, 1, minimum=0)
    last = fields.count("moe_layer_end_index", MAX_LAYERS, -1, minimum=-1)
    if last == -1:
        last = num_layers - 1
    return tuple(
        experts if first <= layer <= last and (layer + 1) % interval == 0 else None
        for layer in range(num_layers)
    )


ERNIE4_5 = Family(
    name="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    aliases={"ernie4_5": "Ernie4_5_ForCausalLM"},
    gguf_architectures=("ernie4_5",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, optional_biases=gguf.ALL_BIASES),
    names=INTERLEAVED_NAMES,
)
ERNIE4_5_MOE = Family(
    name="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    gguf_architectures=("ernie4_5-moe",),
    from_hugging_face=_moe_from_hugging_face,
    from_gguf=partial(gguf.read_expert_config, norm_topk_prob=True, implemented=gguf.PLACE_KEYS),
    names={
        **INTERLEAVED_NAMES,
        FileKind.HUGGING_FACE: INTERLEAVED_NAMES[FileKind.HUGGING_FACE].changed(
            {
                "mlp.correction.weight": "mlp.moe_statics.e_score_correction_bias",
                **SHARED_EXPERTS,
            },
            skipped={
                "multi-token prediction layers": re.compile(
                    r"model\.mtp_(block|emb_norm|hidden_norm|linear_proj)\."
                )
            },
        ),
    },
)
