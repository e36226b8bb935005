"""From what a user calls MODEL to files, a configuration, a tokenizer and tensors."""

from potluck.catalog.description import (
    ModelDescription,
    canonical_source,
    describe_model,
    load_chat_template,
    load_tokenizer,
    open_tensors,
)
from potluck.catalog.locate import ModelFiles

__all__ = [
    "ModelDescription",
    "ModelFiles",
    "canonical_source",
    "describe_model",
    "load_chat_template",
    "load_tokenizer",
    "open_tensors",
]
