"""MiniMax M2 (MiniMax 2025): sigmoid routing with corrections in every layer, norms over the whole
width of queries and keys, and partial rope.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_WIDTH, Fields, unsupported
from potluck.models.mixtral import BLOCK_SPARSE_NAMES
from potluck.models.names import HUGGING_FACE_NAMES, FileKind
from potluck.types.model import HeadNorm, ModelConfig
from potluck.types.program import ExpertScore

# ``MiniMaxM2Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196_608,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "rope_theta": 5_000_000.0,
    "vocab_size": 200_064,
}
# Other keys of published files, which the code of transformers ignores, and the values that it
# uses.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "qk_norm_type": ("per_layer",),
    "scoring_func": ("sigmoid",),
    "shared_intermediate_size": (0,),
    "use_qk_norm": (True,),
    "use_routing_bias": (True,),
}
_FULL_ATTENTION = 1


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    if any(each != _FULL_ATTENTION for each in fields.counts("attn_type_list", 2**16)):
        raise unsupported("attn_type_list")
    num_layers = hugging_face.num_hidden_layers(fields)
    experts = dataclasses.replace(
        hugging_face.read_experts(fields, norm_topk_prob=True, num_layers=num_layers),
        score=ExpertScore.SIGMOID,
        has_score_correction_bias=True,
    )
    head_dim = fields.count("head_dim", MAX_WIDTH)
    rotary_dim = fields.count("rotary_dim", head_dim, head_dim)
    return hugging_face.read_config(
        fields,
        implemented=hugging_face.EXPERT_KEYS | {"use_qk_norm"},
        head_norm=HeadNorm.WIDTH,
        experts=(experts,) * num_layers,
        default_rotary_share=rotary_dim / head_dim,
    )


MINIMAX_M2 = Family(
    name="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    gguf_architectures=("minimax-m2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(
        gguf.read_expert_config,
        norm_topk_prob=True,
        score=ExpertScore.SIGMOID,
        head_norm=HeadNorm.WIDTH,
    ),
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                **BLOCK_SPARSE_NAMES,
                "mlp.correction.weight": "block_sparse_moe.e_score_correction_bias",
            }
        ),
    },
)
