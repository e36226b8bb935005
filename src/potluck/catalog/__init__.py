"""From what a user calls MODEL to files, a configuration, a tokenizer and tensors."""

from potluck.catalog.description import (
    ModelDescription,
    canonical_source,
    config_document,
    describe_files,
    describe_model,
    find_files,
    load_chat_template,
    load_fill_in_tokens,
    load_token_list,
    load_tokenizer,
    open_headers,
    open_vocabulary,
    open_weights,
)
from potluck.catalog.fetch import fetch_model
from potluck.catalog.hub import FetchedFile
from potluck.catalog.locate import ModelFiles, locate_on_disk
from potluck.catalog.profile import read_profile

__all__ = [
    "FetchedFile",
    "ModelDescription",
    "ModelFiles",
    "canonical_source",
    "config_document",
    "describe_files",
    "describe_model",
    "fetch_model",
    "find_files",
    "load_chat_template",
    "load_fill_in_tokens",
    "load_token_list",
    "load_tokenizer",
    "locate_on_disk",
    "open_headers",
    "open_vocabulary",
    "open_weights",
    "read_profile",
]
