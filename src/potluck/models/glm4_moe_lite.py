"""GLM-4.7-Flash (Z.ai 2026): latent attention, and the experts of GLM-4.5.

Files contain an additional layer for multi-token prediction, which is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import hugging_face, latent
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.latent import NAMES
from potluck.types.model import ModelConfig
from potluck.types.program import ExpertScore

# ``Glm4MoeLiteConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
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
# Fixed in the code of transformers, whatever the file says.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
}
_DENSE, _SPARSE = "dense", "sparse"


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    kinds = fields.texts("mlp_layer_types")
    if not kinds:
        fields.refuse_others({"first_k_dense_replace": (1,)})
        kinds = (_DENSE, *(_SPARSE,) * (hugging_face.num_hidden_layers(fields) - 1))
    hugging_face.check_kinds(fields, "mlp_layer_types", kinds, {_DENSE, _SPARSE})
    return latent.read_hugging_face(
        fields,
        experts=latent.read_experts_of_layers(
            fields, ExpertScore.SIGMOID, [kind == _SPARSE for kind in kinds]
        ),
        is_interleaved=fields.truth("rope_interleave", default=True),
    )


GLM4_MOE_LITE = Family(
    name="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    from_hugging_face=_from_hugging_face,
    names=NAMES,
)
