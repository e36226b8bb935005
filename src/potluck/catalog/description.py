"""What is known of a model before its weights are read, and the ways to the rest of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.allocator import return_free_memory
from potluck.catalog.hub import (
    OnFetch,
    fetch_files,
    fetch_small_files,
    find_snapshot,
    gguf_parts,
    single_file,
    weight_files,
)
from potluck.catalog.hub_cache import Snapshot
from potluck.catalog.hub_heads import files_or_heads
from potluck.catalog.locate import HubModel, ModelFiles, locate_model
from potluck.catalog.sampling_defaults import (
    MAX_JSON_BYTES,
    gguf_sampling_defaults,
    read_generation_config,
)
from potluck.catalog.vectors import VectorUse, gguf_vector_use, read_vector_use
from potluck.formats.encodings import Encoding, read_encoding
from potluck.formats.files import OpenFile, ReadOnlyFile
from potluck.formats.gguf import GgufSource, open_gguf
from potluck.formats.json_reader import read_document
from potluck.formats.safetensors import INDEX_FILE, open_safetensors, read_index
from potluck.formats.source import FileTensorSource
from potluck.models.names import FileKind
from potluck.models.program import weight_specs
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    refuse_unread_tensors,
    skipped_parts,
    stored_tensors,
    stored_weights,
    with_stored_head,
)
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard
from potluck.types.text import Tokenizer, TokenList

if TYPE_CHECKING:
    from potluck.grammars.vocabulary import Vocabulary
    from potluck.text.chat import ChatTemplate
    from potluck.weights.canonical import CanonicalSource, Dequantize


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model that this build can run.

    ``sampling_defaults`` are the sampling parameters that its makers recommend, or that are usual
    for its kind of file; empty where there are none. ``vectors`` says what its vectors are for.
    ``skipped`` are parts that the files hold and that are left out, such as a vision tower.
    ``encoding`` says how quantized weights are stored, where that takes several tensors for one.
    """

    files: ModelFiles
    config: ModelConfig
    sampling_defaults: Mapping[str, float | int]
    vectors: VectorUse = field(default_factory=VectorUse)
    skipped: tuple[str, ...] = ()
    encoding: Encoding | None = None


def describe_model(name: str) -> ModelDescription:
    """Find MODEL and read its configuration, fetching what that takes if it is on the hub.

    Of a hub model only small files and headers are fetched; weights come by ``open_weights``. A
    model that cannot be run is refused. Raises ``ModelNotFoundError``, ``ModelFileError`` and
    ``UnsupportedModelError``.
    """
    return describe_files(locate_model(name, _find_on_hub))


def find_files(name: str) -> ModelFiles:
    """Find MODEL whether or not it can be run; of a hub model only small files are fetched.

    Raises ``ModelNotFoundError`` and ``ModelFileError``, and ``UnsupportedModelError`` for a
    repository without weights that this build could read.
    """
    return locate_model(name, _find_unchecked)


def describe_files(files: ModelFiles) -> ModelDescription:
    """Read the configuration of a model whose files were found. Raises as ``describe_model``."""
    encoding: Encoding | None = None
    if files.kind is FileKind.HUGGING_FACE:
        document, path = config_document(files.path)
        encoding = read_encoding(document, path=path)
        config, vectors = read_vector_use(files.path, read_config(files.path), name=files.name)
        sampling_defaults = read_generation_config(files.path / "generation_config.json")
    else:
        with closing(_open_gguf_header(files)) as source:
            config = config_from_gguf(source.metadata, source, path=str(files.path))
            sampling_defaults = gguf_sampling_defaults(source.metadata, path=str(files.path))
            vectors = gguf_vector_use(source.metadata, config, path=str(files.path))
            source.check_unchanged()
    description = ModelDescription(
        files=files,
        config=config,
        sampling_defaults=sampling_defaults,
        vectors=vectors,
        encoding=encoding,
    )
    names = frozenset(_tensor_names(description))
    config = with_stored_head(config, names, files.kind)
    refuse_unread_tensors(config, names, files.kind)
    skipped = skipped_parts(config, names, files.kind)
    return replace(description, config=config, skipped=skipped)


def open_headers(
    description: ModelDescription, shards: Iterable[Shard] | None = None
) -> FileTensorSource:
    """What tensors the model has, or those that ``shards`` read, under the files' names.

    Their bytes need not be on this disk: what lacks is the header, it is read from the hub. The
    caller closes it. Raises as ``open_weights``.
    """
    snapshot = description.files.snapshot
    open_file = ReadOnlyFile if snapshot is None else files_or_heads(snapshot)
    return _open(description, shards, open_file)


def open_weights(
    description: ModelDescription, shards: Iterable[Shard], on_fetch: OnFetch | None = None
) -> FileTensorSource:
    """The tensors that ``shards`` read, under the names that the files give them.

    Files of a hub model that hold some of them are fetched first, and no others. The caller closes
    it. Raises ``ModelNotFoundError`` and ``ModelFileError``.
    """
    wanted = list(shards)
    snapshot = description.files.snapshot
    if snapshot is not None:
        fetch_files(snapshot, _files_for(description, snapshot, wanted), on_fetch)
    return _open(description, wanted, ReadOnlyFile)


def canonical_source(
    description: ModelDescription,
    tensors: FileTensorSource,
    program: Program,
    *,
    dequantize: Dequantize | None = None,
) -> CanonicalSource:
    """What ``program`` reads, under canonical names; ``tensors`` stay open with their owner.

    ``dequantize`` is needed to read what some old files store in blocks (``CanonicalSource``).
    """
    from potluck.weights.canonical import CanonicalSource

    stored = stored_tensors(description.config, program, description.files.kind)
    path = str(description.files.path)
    return CanonicalSource(tensors, stored, path=path, dequantize=dequantize)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The model's tokenizer."""
    tokenizer = _load_tokenizer(files)
    # Of Gemma's 262,144 entries, more than half of the memory was for reading them: 180 MB.
    return_free_memory()
    return tokenizer


def _load_tokenizer(files: ModelFiles) -> Tokenizer:
    if files.kind is FileKind.HUGGING_FACE:
        return read_tokenizer(files.path)
    from potluck.text import gguf

    with closing(_open_gguf_header(files)) as source:
        tokenizer = gguf.build_tokenizer(source.metadata, path=str(files.path))
        source.check_unchanged()
        return tokenizer


def load_token_list(files: ModelFiles) -> TokenList:
    """What the model's tokens stand for: of its tokenizer, what grammars need."""
    if files.kind is FileKind.HUGGING_FACE:
        from potluck.text import hugging_face

        return hugging_face.load_token_list(files.path)
    from potluck.text import gguf

    with closing(_open_gguf_header(files)) as source:
        tokens = gguf.list_gguf_tokens(source.metadata, path=str(files.path))
        source.check_unchanged()
        return tokens


def open_vocabulary(description: ModelDescription) -> Vocabulary:
    """The model's vocabulary, for grammars. Raises as ``load_token_list`` and ``Vocabulary``."""
    from potluck.grammars.vocabulary import Vocabulary

    return Vocabulary(load_token_list(description.files), description.config.vocab_size)


def load_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """The model's chat template, or None if it has none."""
    if files.kind is FileKind.HUGGING_FACE:
        from potluck.text import hugging_face

        return hugging_face.load_chat_template(files.path)
    from potluck.text import gguf

    with closing(_open_gguf_header(files)) as source:
        template = gguf.read_chat_template(source.metadata, path=str(files.path))
        source.check_unchanged()
        return template


def load_fill_in_tokens(files: ModelFiles) -> dict[str, int]:
    """The tokens for gaps in texts that a GGUF file names, by ``potluck.text.fill_in``'s names."""
    if files.kind is FileKind.HUGGING_FACE:
        return {}
    from potluck.text import gguf

    with closing(_open_gguf_header(files)) as source:
        tokens = gguf.read_fill_in_tokens(source.metadata, path=str(files.path))
        source.check_unchanged()
        return tokens


def _find_on_hub(model: HubModel) -> Snapshot:
    snapshot = find_snapshot(model)
    if model.filename is None:
        fetch_small_files(snapshot, check_config=read_config, check_tokenizer=read_tokenizer)
    return snapshot


def _find_unchecked(model: HubModel) -> Snapshot:
    snapshot = find_snapshot(model)
    if model.filename is None:
        fetch_small_files(snapshot, check_config=_accept, check_tokenizer=_accept)
    return snapshot


def _accept(directory: Path) -> None:
    pass


def _open(
    description: ModelDescription, shards: Iterable[Shard] | None, open_file: OpenFile
) -> FileTensorSource:
    files = description.files
    if files.kind is FileKind.GGUF:
        return open_gguf(files.path, open_file)
    names = None if shards is None else _stored_names(description, shards)
    path = files.path
    if files.snapshot is not None:
        is_indexed = INDEX_FILE in files.snapshot.files
        path = path / (INDEX_FILE if is_indexed else single_file(files.snapshot))
    source = open_safetensors(path, open_file, names=names)
    if description.encoding is None:
        return source
    from potluck.formats.encodings.source import EncodedSource

    return EncodedSource(source, description.encoding)


def _open_gguf_header(files: ModelFiles) -> GgufSource:
    snapshot = files.snapshot
    return open_gguf(files.path, ReadOnlyFile if snapshot is None else files_or_heads(snapshot))


def _tensor_names(description: ModelDescription) -> Iterable[str]:
    """All tensors of the model; an index has their names without a file's header."""
    snapshot = description.files.snapshot
    if snapshot is not None and INDEX_FILE in snapshot.files:
        names = read_index(snapshot.path(INDEX_FILE))
        encoding = description.encoding
        return names if encoding is None else encoding.shown_names(names)
    with closing(open_headers(description)) as headers:
        return headers.names()


def _stored_names(description: ModelDescription, shards: Iterable[Shard]) -> frozenset[str]:
    """What the files may call the tensors that ``shards`` read."""
    encoding = description.encoding
    return frozenset(
        part
        for shard in shards
        for each in stored_weights(
            description.config, weight_specs(description.config, shard), description.files.kind
        )
        for name in each.stored_names
        for part in ((name,) if encoding is None else encoding.possible_parts(name))
    )


def _files_for(
    description: ModelDescription, snapshot: Snapshot, shards: Iterable[Shard]
) -> list[str]:
    """The files that hold what ``shards`` read; of GGUF, all parts, whose headers are one."""
    files = description.files
    if files.kind is FileKind.GGUF:
        return gguf_parts(str(files.path.relative_to(snapshot.directory)))
    return weight_files(snapshot, _stored_names(description, shards))


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a directory in Hugging Face layout."""
    from potluck.text import hugging_face

    return hugging_face.load_tokenizer(directory)


def read_config(directory: Path) -> ModelConfig:
    """The configuration of a directory in Hugging Face layout."""
    document, path = config_document(directory)
    return config_from_hugging_face(document, path=path)


def config_document(directory: Path) -> tuple[Mapping[str, object], str]:
    """What ``config.json`` says, and its path. Raises ``ModelFileError``."""
    path = directory / "config.json"
    return read_document(path, MAX_JSON_BYTES), str(path)
