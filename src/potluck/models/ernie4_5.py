"""ERNIE 4.5, dense (Baidu 2025): Llama with interleaved rope pairs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import INTERLEAVED_NAMES
from potluck.types.model import ModelConfig

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


ERNIE4_5 = Family(
    name="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    aliases={"ernie4_5": "Ernie4_5_ForCausalLM"},
    gguf_architectures=("ernie4_5",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, optional_biases=gguf.ALL_BIASES),
    names=INTERLEAVED_NAMES,
)
