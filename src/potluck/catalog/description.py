"""Describe a model before its weights are read, and open its weights and tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from potluck.catalog.file_names import CONFIG_FILES, TEXT_FILES
from potluck.catalog.hub import (
    FetchedFile,
    OnFetch,
    fetch_files,
    fetch_small_files,
    find_snapshot,
    weight_files,
    weights_of,
)
from potluck.catalog.hub_cache import Snapshot
from potluck.catalog.hub_client import files_or_heads
from potluck.catalog.locate import ModelFiles, files_on_hub, locate_model, parse_hub_id
from potluck.catalog.manifest_view import ManifestView
from potluck.catalog.manifests import weights_file
from potluck.catalog.sampling_defaults import (
    MAX_JSON_BYTES,
    gguf_sampling_defaults,
    read_generation_config,
)
from potluck.catalog.vectors import VectorUse, gguf_vector_use, read_vector_use
from potluck.errors import UsageError
from potluck.formats.encodings import Encoding, read_encoding
from potluck.formats.files import OpenFile, ReadOnlyFile
from potluck.formats.gguf import GgufSource, gguf_parts, open_gguf
from potluck.formats.json_reader import read_document
from potluck.formats.safetensors import INDEX_FILE, open_safetensors, read_index
from potluck.formats.source import FileTensorSource
from potluck.host.allocator import return_free_memory
from potluck.models.names import FileKind
from potluck.models.program import weight_specs
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    refuse_unread_tensors,
    skipped_parts,
    stored_weights,
    with_stored_head,
)
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard

if TYPE_CHECKING:
    from potluck.grammars.vocabulary import Vocabulary
    from potluck.text.chat import ChatTemplate
    from potluck.types.text import Tokenizer, TokenList
    from potluck.weights.canonical import CanonicalSource, Dequantize

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model that this build can run.

    ``sampling_defaults`` are the sampling parameters that its authors recommend, or the usual ones
    for its kind of file; empty if there are none. ``vectors`` says what its vectors are for.
    ``skipped`` are parts of the files that are ignored, such as a vision tower. ``encoding``
    describes quantized weights that are stored as several tensors each.
    """

    files: ModelFiles
    config: ModelConfig
    sampling_defaults: Mapping[str, float | int]
    vectors: VectorUse = field(default_factory=VectorUse)
    skipped: tuple[str, ...] = ()
    encoding: Encoding | None = None


def describe_model(name: str) -> ModelDescription:
    """Find MODEL and read its configuration, downloading the required files if it is on the hub.

    Only small files and headers of a hub model are downloaded; ``open_weights`` downloads weights.
    A model that cannot be run is refused. Raise ``ModelNotFoundError``, ``ModelFileError`` and
    ``UnsupportedModelError``.
    """
    return describe_files(find_files(name, is_checked=True))


def find_files(name: str, *, is_checked: bool = False) -> ModelFiles:
    """Find MODEL, whether or not it can be run; only small files of a hub model are downloaded.

    With ``is_checked``, a hub model that cannot be run is refused as soon as possible. Raise
    ``ModelNotFoundError`` and ``ModelFileError``, and ``UnsupportedModelError`` if a repository has
    no weights that this build can read.
    """
    model = locate_model(name)
    if isinstance(model, ModelFiles):
        return model
    snapshot = find_snapshot(model)
    if model.gguf_in(snapshot) is None:
        fetch_small_files(
            snapshot,
            check_config=read_config if is_checked else _accept,
            check_tokenizer=read_tokenizer if is_checked else _accept,
        )
    return files_on_hub(name, model, snapshot)


def describe_files(files: ModelFiles) -> ModelDescription:
    """Read the configuration of a model whose files are known.

    Raise the errors of ``describe_model``.
    """
    encoding: Encoding | None = None
    if files.view is not None:
        files.view.fetch_files(CONFIG_FILES)
    if files.kind is FileKind.HUGGING_FACE:
        document, path = config_document(files.path)
        encoding = read_encoding(document, path=path)
        config = config_from_hugging_face(document, path=path)
        config, vectors = read_vector_use(files.path, config, name=files.name)
        sampling_defaults = read_generation_config(files.path / "generation_config.json")
    else:
        with closing(_open_gguf_header(files)) as source:
            config = config_from_gguf(source.metadata, source, path=files.label)
            sampling_defaults = gguf_sampling_defaults(source.metadata, path=files.label)
            vectors = gguf_vector_use(source.metadata, config, path=files.label)
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


def describe_view(view: ManifestView) -> ModelDescription:
    """Read the configuration of a model that is identified by the content of its files.

    Its small files are fetched whole, and the headers of the others are read. Later uses of the
    description read files in the same way. Raise the errors of ``describe_model`` and of fetching.
    """
    manifest = view.manifest
    files = ModelFiles(
        name=view.name,
        kind=FileKind(manifest.kind),
        path=view.directory / manifest.main if manifest.main else view.directory,
        view=view,
    )
    return describe_files(files)


def open_headers(
    description: ModelDescription, shards: Iterable[Shard] | None = None
) -> FileTensorSource:
    """Return the model's tensors, or those that ``shards`` read, under the files' names.

    Their bytes need not be on this disk: missing headers are read from the hub. The caller closes
    the source. Raise the errors of ``open_weights``.
    """
    return _open(description, shards, _header_opener(description.files))


def open_weights(
    description: ModelDescription, shards: Iterable[Shard], on_fetch: OnFetch | None = None
) -> FileTensorSource:
    """Return the tensors that ``shards`` read, under the files' names.

    Only the files of a hub model that hold some of them are downloaded first. For a model that is
    identified by the content of its files, bytes are fetched as they are read. The caller closes
    the source. Raise ``ModelNotFoundError`` and ``ModelFileError``.
    """
    wanted = list(shards)
    view, snapshot = description.files.view, description.files.snapshot
    if view is not None:
        return _open(description, wanted, view.open)
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
    """Return the tensors that ``program`` reads, under canonical names; ``tensors`` stay open.

    ``dequantize`` is needed for tensors that some old files store in blocks (``CanonicalSource``).
    """
    from potluck.weights.canonical import CanonicalSource

    stored = stored_weights(description.config, program.weights, description.files.kind)
    path = description.files.label
    return CanonicalSource(tensors, stored, path=path, dequantize=dequantize)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return the model's tokenizer."""
    if files.kind is FileKind.HUGGING_FACE:
        tokenizer = read_tokenizer(_text_directory(files))
    else:
        from potluck.text import gguf

        tokenizer = _read_gguf_header(files, gguf.build_tokenizer)
    # Reading Gemma's 262,144 entries temporarily takes 180 MB, more than half of the memory.
    return_free_memory()
    return tokenizer


def load_token_list(files: ModelFiles) -> TokenList:
    """Return the texts of the model's tokens, the part of its tokenizer that grammars need."""
    if files.kind is FileKind.HUGGING_FACE:
        from potluck.text import hugging_face

        return hugging_face.load_token_list(_text_directory(files))
    from potluck.text import gguf

    return _read_gguf_header(files, gguf.list_gguf_tokens)


def open_vocabulary(description: ModelDescription) -> Vocabulary:
    """Return the model's vocabulary, for grammars.

    Raise the errors of ``load_token_list`` and ``Vocabulary``.
    """
    from potluck.grammars.vocabulary import Vocabulary

    return Vocabulary(load_token_list(description.files), description.config.vocab_size)


def load_chat_template(files: ModelFiles) -> ChatTemplate | None:
    """Return the model's chat template, or None if it has none."""
    if files.kind is FileKind.HUGGING_FACE:
        from potluck.text import hugging_face

        return hugging_face.load_chat_template(_text_directory(files))
    from potluck.text import gguf

    return _read_gguf_header(files, gguf.read_chat_template)


def load_fill_in_tokens(files: ModelFiles) -> dict[str, int]:
    """Return the fill-in-the-middle tokens of a GGUF file, by the names in
    ``potluck.text.fill_in``.
    """
    if files.kind is FileKind.HUGGING_FACE:
        return {}
    from potluck.text import gguf

    return _read_gguf_header(files, gguf.read_fill_in_tokens)


def _accept(directory: Path) -> None:
    pass


def _open(
    description: ModelDescription, shards: Iterable[Shard] | None, open_file: OpenFile
) -> FileTensorSource:
    files = description.files
    if files.kind is FileKind.GGUF:
        return open_gguf(files.path, open_file)
    names = None if shards is None else _stored_names(description, shards)
    if files.view is not None:
        files.view.fetch_files((INDEX_FILE,))
    source = open_safetensors(files.path / _opened_name(files), open_file, names=names)
    if description.encoding is None:
        return source
    from potluck.formats.encodings.source import EncodedSource

    return EncodedSource(source, description.encoding)


def _header_opener(files: ModelFiles) -> OpenFile:
    if files.view is not None:
        return files.view.open
    return ReadOnlyFile if files.snapshot is None else files_or_heads(files.snapshot)


def _open_gguf_header(files: ModelFiles) -> GgufSource:
    return open_gguf(files.path, _header_opener(files))


def _read_gguf_header(files: ModelFiles, read: Callable[..., _T]) -> _T:
    """Return what ``read`` finds in the metadata of a GGUF file."""
    with closing(_open_gguf_header(files)) as source:
        found = read(source.metadata, path=files.label)
        source.check_unchanged()
        return found


def _text_directory(files: ModelFiles) -> Path:
    """Return the directory with all files for tokenization."""
    if files.view is not None:
        files.view.fetch_files(sorted(TEXT_FILES))
    return files.path


def _tensor_names(description: ModelDescription) -> Iterable[str]:
    """Return the names of all tensors, from the index if there is one, without reading headers."""
    files = description.files
    if files.kind is FileKind.HUGGING_FACE and _opened_name(files) == INDEX_FILE:
        names = read_index(files.path / INDEX_FILE)
        encoding = description.encoding
        return names if encoding is None else encoding.shown_names(names)
    with closing(open_headers(description)) as headers:
        return headers.names()


def _opened_name(files: ModelFiles) -> str:
    """Return the file through which weights in Hugging Face layout are opened.

    It is empty for a directory on this disk, in which ``open_safetensors`` looks for it.
    """
    if files.view is not None:
        return weights_file(files.view.manifest)
    return "" if files.snapshot is None else weights_of(files.snapshot)


def _stored_names(description: ModelDescription, shards: Iterable[Shard]) -> frozenset[str]:
    """Return the names that the tensors that ``shards`` read may have in the files."""
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
    """Return the files that ``shards`` read; for GGUF all parts, whose headers belong together."""
    files = description.files
    if files.kind is FileKind.GGUF:
        return gguf_parts(str(files.path.relative_to(snapshot.directory)))
    return weight_files(snapshot, _stored_names(description, shards))


def read_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of a directory in Hugging Face layout."""
    from potluck.text import hugging_face

    return hugging_face.load_tokenizer(directory)


def read_config(directory: Path) -> ModelConfig:
    """Return the configuration of a directory in Hugging Face layout."""
    document, path = config_document(directory)
    return config_from_hugging_face(document, path=path)


def config_document(directory: Path) -> tuple[Mapping[str, object], str]:
    """Return the contents of ``config.json`` and its path. Raise ``ModelFileError`` on failure."""
    path = directory / "config.json"
    return read_document(path, MAX_JSON_BYTES), str(path)


def fetch_model(
    name: str, *, only: Sequence[str] = (), on_fetch: OnFetch | None = None
) -> tuple[ModelFiles, tuple[FetchedFile, ...]]:
    """Download the required files of a hub model, or ``only`` some files.

    A model that cannot be run is refused before its weights are downloaded, unless files are named.
    ``on_fetch`` receives the progress of the weights. Raise ``UsageError``, ``ModelNotFoundError``,
    ``ModelFileError`` and ``UnsupportedModelError``.
    """
    model = parse_hub_id(name)
    if model is None:
        raise UsageError(
            f"{name} is not a Hub model id",
            hint="give org/name, org/name:file.gguf, org/name:Q4_K_M or org/name@revision",
        )
    snapshot = find_snapshot(model)
    files = files_on_hub(name, model, snapshot)
    filename = model.gguf_in(snapshot)
    if only:
        named = [*only] if filename is None else [filename, *only]
        parts = [part for each in named for part in gguf_parts(each)]
        return files, fetch_files(snapshot, parts, on_fetch)
    if filename is not None:
        describe_model(files.pinned_name)
        return files, fetch_files(snapshot, gguf_parts(filename), on_fetch)
    small = fetch_small_files(snapshot, check_config=read_config, check_tokenizer=read_tokenizer)
    describe_model(files.pinned_name)
    return files, (*small, *fetch_files(snapshot, weight_files(snapshot), on_fetch))
