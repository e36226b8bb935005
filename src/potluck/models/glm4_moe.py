"""GLM-4.5 to 4.7 (GLM-4.5 Team 2025): sigmoid routing with corrections and shared experts, after
some dense layers; rope on half of each head.

Files contain an additional layer for multi-token prediction, which is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import gguf, hugging_face, latent
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, SHARED_EXPERTS, FileKind
from potluck.types.model import HeadNorm, ModelConfig
from potluck.types.program import ExpertScore
from potluck.types.tensor import TensorSource

# ``Glm4MoeConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "first_k_dense_replace": 1,
    "hidden_size": 4096,
    "intermediate_size": 10_944,
    "max_position_embeddings": 131_072,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 151_552,
}
_ROTARY_SHARE = 0.5
# Fixed in the code of transformers, whatever the file says.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    has_norm = fields.flag("use_qk_norm", default=False)
    with_null_as_absent = {
        "norm_topk_prob": fields.flag("norm_topk_prob", default=True),
        "routed_scaling_factor": fields.positive("routed_scaling_factor", 1.0),
    }
    experts = latent.read_experts_of_layers(
        fields.changed(with_null_as_absent), ExpertScore.SIGMOID, latent.after_dense_layers(fields)
    )
    return hugging_face.read_config(
        fields,
        implemented=hugging_face.EXPERT_KEYS
        | {"attention_bias", "n_routed_experts", "use_qk_norm"},
        qkv_bias=fields.flag("attention_bias", default=False),
        head_norm=HeadNorm.HEAD if has_norm else HeadNorm.NONE,
        experts=experts,
        default_rotary_share=_ROTARY_SHARE,
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    fields = gguf.without_mtp_layers(fields)
    names = frozenset(source.names())
    return gguf.read_config(
        fields,
        source,
        implemented=gguf.EXPERT_KEYS | gguf.ROUTING_KEYS | gguf.PLACE_KEYS | {gguf.NEXT_KEY},
        optional_biases=frozenset({"attn_q"}),
        head_norm=HeadNorm.HEAD if "blk.0.attn_q_norm.weight" in names else HeadNorm.NONE,
        experts=gguf.read_experts_of_layers(
            fields, source, norm_topk_prob=False, score=ExpertScore.SIGMOID
        ),
    )


GLM4_MOE = Family(
    name="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    gguf_architectures=("glm4moe",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                "mlp.correction.weight": "mlp.gate.e_score_correction_bias",
                **SHARED_EXPERTS,
            },
            has_more_layers=True,
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            {"mlp_norm": "post_attention_norm"}, has_more_layers=True
        ),
    },
)
