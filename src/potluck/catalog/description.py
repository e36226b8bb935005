"""What is known of a model before its weights are read, and the ways to the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.catalog.hub import download_model
from potluck.catalog.locate import HubModel, ModelFiles, locate_model
from potluck.errors import ModelFileError, ParameterError
from potluck.formats.gguf import open_gguf
from potluck.formats.json_reader import read_document
from potluck.formats.safetensors import open_safetensors
from potluck.formats.source import FileTensorSource
from potluck.models.names import FileKind
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    refuse_unread_tensors,
    stored_tensors,
)
from potluck.types.model import ModelConfig
from potluck.types.program import Program
from potluck.types.sampling import validate_sampling
from potluck.types.step import SamplingParams
from potluck.types.text import Tokenizer
from potluck.weights.canonical import CanonicalSource

if TYPE_CHECKING:
    from potluck.text.chat import ChatTemplate

MAX_JSON_BYTES = 2**20
"""Of config.json and generation_config.json. Real ones have a few kilobytes, or some tens where a
quantization lists layers."""

_SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model that this build can run.

    ``sampling_defaults`` are the sampling parameters that its makers recommend
    (``generation_config.json``), empty when they say nothing.
    """

    files: ModelFiles
    config: ModelConfig
    sampling_defaults: Mapping[str, float | int]


def describe_model(name: str) -> ModelDescription:
    """Find MODEL (downloading it if need be) and read its configuration.

    A model that cannot be run is refused before its weights are fetched. Raises
    ``ModelNotFoundError``, ``ModelFileError`` and ``UnsupportedModelError``.
    """
    files = locate_model(name, _download)
    if files.kind is FileKind.HUGGING_FACE:
        config = _read_config(files.path)
        sampling_defaults = _read_sampling_defaults(files.path / "generation_config.json")
    else:
        with closing(open_gguf(files.path)) as source:
            config = config_from_gguf(source.metadata, source, path=str(files.path))
            source.check_unchanged()
        sampling_defaults = {}
    with closing(open_tensors(files)) as tensors:
        refuse_unread_tensors(config, tensors.names(), files.kind)
    return ModelDescription(files=files, config=config, sampling_defaults=sampling_defaults)


def open_tensors(files: ModelFiles) -> FileTensorSource:
    """All tensors of the model under the names that its files give them. The caller closes it."""
    if files.kind is FileKind.GGUF:
        return open_gguf(files.path)
    return open_safetensors(files.path)


def canonical_source(
    description: ModelDescription, tensors: FileTensorSource, program: Program
) -> CanonicalSource:
    """What ``program`` reads, under canonical names; ``tensors`` stay open with their owner."""
    stored = stored_tensors(description.config, program, description.files.kind)
    return CanonicalSource(tensors, stored, path=str(description.files.path))


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The model's tokenizer."""
    if files.kind is FileKind.HUGGING_FACE:
        return _read_tokenizer(files.path)
    from potluck.text import gguf

    with closing(open_gguf(files.path)) as source:
        tokenizer = gguf.build_tokenizer(source.metadata, path=str(files.path))
        source.check_unchanged()
        return tokenizer


def load_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """The model's chat template, or None if it has none."""
    if files.kind is FileKind.HUGGING_FACE:
        from potluck.text import hugging_face

        return hugging_face.load_chat_template(files.path)
    from potluck.text import gguf

    with closing(open_gguf(files.path)) as source:
        template = gguf.read_chat_template(source.metadata, path=str(files.path))
        source.check_unchanged()
        return template


def _download(model: HubModel) -> Path:
    return download_model(model, check_config=_read_config, check_tokenizer=_read_tokenizer)


def _read_tokenizer(directory: Path) -> Tokenizer:
    from potluck.text import hugging_face

    return hugging_face.load_tokenizer(directory)


def _read_config(directory: Path) -> ModelConfig:
    path = directory / "config.json"
    return config_from_hugging_face(read_document(path, MAX_JSON_BYTES), path=str(path))


def _read_sampling_defaults(path: Path) -> dict[str, float | int]:
    """The recommended sampling parameters; none when the file does not ask for sampling."""
    if not path.is_file():
        return {}
    values = read_document(path, MAX_JSON_BYTES)
    if values.get("do_sample") is not True:
        return {}
    defaults: dict[str, Any] = {
        name: value
        for name in _SAMPLING_FIELDS
        # As transformers has it, a top_k of 0 keeps all tokens.
        if (value := values.get(name)) is not None and not (name == "top_k" and value == 0)
    }
    try:
        validate_sampling(SamplingParams(**defaults), vocab_size=1)
    except ParameterError as error:
        raise ModelFileError(str(path), error.message, hint="mend or remove that line") from error
    return defaults
