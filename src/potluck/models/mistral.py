"""Mistral 7B and what follows it (Jiang et al. 2023): Llama with a sliding window in every layer.

Its GGUF files are of the architecture ``llama``.
"""

from __future__ import annotations

from potluck.models import hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, Fields
from potluck.types.model import ModelConfig


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return hugging_face.read_config(
        fields,
        family="mistral",
        implemented=frozenset({"sliding_window"}),
        absent_kv_heads=8,
        sliding_windows=(_window(fields),) * hugging_face.num_hidden_layers(fields),
    )


def _window(fields: Fields) -> int | None:
    # Without the key transformers assumes Mistral 7B's window; later models say null.
    if fields.is_null("sliding_window"):
        return None
    return fields.count("sliding_window", MAX_CONTEXT_TOKENS, 4096)


MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    gguf_architectures=(),
    from_hugging_face=_from_hugging_face,
    from_gguf=None,
)
