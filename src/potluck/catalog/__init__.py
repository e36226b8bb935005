"""Resolve MODEL arguments to files, a configuration, a tokenizer and tensors."""

from potluck.catalog.description import (
    ModelDescription,
    canonical_source,
    config_document,
    describe_files,
    describe_model,
    describe_view,
    fetch_model,
    find_files,
    load_chat_template,
    load_fill_in_tokens,
    load_token_list,
    load_tokenizer,
    open_headers,
    open_vocabulary,
    open_weights,
)
from potluck.catalog.fingerprint import listed_contents, make_manifest, manifest_names
from potluck.catalog.hub import FetchedFile
from potluck.catalog.locate import ModelFiles, locate_on_disk, looks_like_path
from potluck.catalog.manifest_view import ContentFile, ContentOpener, ManifestView
from potluck.catalog.manifests import check_manifest, manifest_digest
from potluck.catalog.profile import read_profile

__all__ = [
    "ContentFile",
    "ContentOpener",
    "FetchedFile",
    "ManifestView",
    "ModelDescription",
    "ModelFiles",
    "canonical_source",
    "check_manifest",
    "config_document",
    "describe_files",
    "describe_model",
    "describe_view",
    "fetch_model",
    "find_files",
    "fingerprint",
    "hub",
    "hub_cache",
    "hub_client",
    "listed_contents",
    "load_chat_template",
    "load_fill_in_tokens",
    "load_token_list",
    "load_tokenizer",
    "locate",
    "locate_on_disk",
    "looks_like_path",
    "make_manifest",
    "manifest_digest",
    "manifest_names",
    "needs",
    "open_headers",
    "open_vocabulary",
    "open_weights",
    "read_profile",
    "small_models",
]
