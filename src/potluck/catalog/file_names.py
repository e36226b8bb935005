"""Names of the files of models in Hugging Face layout."""

from __future__ import annotations

from potluck.formats.safetensors import INDEX_FILE

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
MODULES = "modules.json"

OTHER_TOKENIZERS = ("tekken.json", "tiktoken.model", "tokenizer.model")
"""The files of models without a tokenizer.json; with one, they have the same vocabulary again."""

VECTOR_FILES = (MODULES, "1_Pooling/config.json", "1_LogitScore/config.json")
"""The files of models whose results are vectors or scores."""

_TEXT_FILES = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "additional_chat_templates/tool_use.jinja",
    *VECTOR_FILES,
)

HUB_FILES = (*_TEXT_FILES, INDEX_FILE)
"""The small files that are fetched from the hub in any case; ``OTHER_TOKENIZERS`` may follow."""

TEXT_FILES = (*sorted({*_TEXT_FILES, *OTHER_TOKENIZERS} - {*VECTOR_FILES}), *VECTOR_FILES)
"""All small files, except the index of the weights; in the order of a fingerprint."""

CONFIG_FILES = (CONFIG, "generation_config.json", *VECTOR_FILES, INDEX_FILE)
"""The small files that describe the model."""

SMALL_FILES = tuple(sorted({*CONFIG_FILES, *TEXT_FILES}))
"""All files that are read whole; the weights are in ``*.safetensors``."""
