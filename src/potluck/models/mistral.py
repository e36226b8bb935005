"""Mistral 7B and its successors (Jiang et al. 2023): Llama with a sliding window in every layer.

Its GGUF files have the architecture ``llama``. Of multimodal models (Mistral Small 3.1 and later),
only the text part is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from potluck.models import hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import HUGGING_FACE_NAMES, FileKind
from potluck.types.model import ModelConfig

SKIPPED: Mapping[str, re.Pattern[str]] = {
    "a vision tower": re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\."),
}
"""Tensors of multimodal models outside the text part."""


def _from_hugging_face(fields: Fields) -> ModelConfig:
    # If the key is absent, transformers assumes Mistral 7B's window; later models have null.
    window = hugging_face.window_unless_null(fields)
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 8}),
        implemented=frozenset({"sliding_window"}),
        sliding_windows=(window,) * hugging_face.num_hidden_layers(fields),
    )


MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    from_hugging_face=_from_hugging_face,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed({}, skipped=SKIPPED),
    },
    wrappers={"mistral3": "Mistral3ForConditionalGeneration"},
)
