"""GLM-4.5 to 4.7 (GLM-4.5 Team 2025), and GLM-4.7-Flash (Z.ai 2026).

The former have sigmoid routing with corrections and shared experts, after some dense layers, and
rope on half of each head; the latter has latent attention, and the same experts. Files contain an
additional layer for multi-token prediction, which is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import gguf, hugging_face, latent
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.latent import NAMES
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
    return gguf.read_expert_config(
        fields,
        source,
        norm_topk_prob=False,
        score=ExpertScore.SIGMOID,
        implemented=gguf.ROUTING_KEYS | gguf.PLACE_KEYS | {gguf.NEXT_KEY},
        optional_biases=frozenset({"attn_q"}),
        head_norm=HeadNorm.HEAD if "blk.0.attn_q_norm.weight" in names else HeadNorm.NONE,
    )


# ``Glm4MoeLiteConfig`` of transformers.
_LITE_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 2048,
    "intermediate_size": 10_240,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202_752,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.8,
    "v_head_dim": 256,
    "vocab_size": 154_880,
}
_LITE_ACCEPTED: Mapping[str, tuple[object, ...]] = {"moe_layer_freq": (1,), **_ACCEPTED}
_DENSE, _SPARSE = "dense", "sparse"


def _lite_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_LITE_DEFAULTS)
    fields.refuse_others(_LITE_ACCEPTED)
    kinds = fields.texts("mlp_layer_types")
    if not kinds:
        fields.refuse_others({"first_k_dense_replace": (1,)})
        kinds = (_DENSE, *(_SPARSE,) * (hugging_face.num_hidden_layers(fields) - 1))
    hugging_face.check_kinds(fields, "mlp_layer_types", kinds, {_DENSE, _SPARSE})
    return latent.read_hugging_face(
        fields,
        ExpertScore.SIGMOID,
        [kind == _SPARSE for kind in kinds],
        is_interleaved=fields.truth("rope_interleave", default=True),
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
GLM4_MOE_LITE = Family(
    name="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    from_hugging_face=_lite_from_hugging_face,
    names=NAMES,
)
