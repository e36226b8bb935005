"""ERNIE 4.5, dense (Baidu 2025): Llama with interleaved rope pairs."""

from __future__ import annotations

from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import INTERLEAVED_NAMES
from potluck.types.model import ModelConfig

_THETA = 500_000.0


def _from_hugging_face(fields: Fields) -> ModelConfig:
    has_biases = fields.flag("use_bias", default=False)
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": _THETA, "tie_word_embeddings": True}
    return hugging_face.read_config(
        fields.with_defaults(defaults),
        implemented=frozenset({"use_bias"}),
        absent_kv_heads=2,
        default_head_dim=None if fields.is_null("head_dim") else 128,
        qkv_bias=has_biases,
        output_bias=has_biases,
        mlp_bias=has_biases,
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
