"""Determine from the headers which bytes of a model's files a stage reads, in order.

A stage reads its own tensors (a member of a group reads its rows of them), and the headers of the
files that contain them. The result may include unneeded bytes between needed ones, such as rows of
other members that are interleaved with its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path

from potluck.catalog.description import ModelDescription, canonical_source, open_headers
from potluck.catalog.file_names import CONFIG_FILES, TEXT_FILES
from potluck.catalog.locate import ModelFiles
from potluck.catalog.manifest_view import ContentFile, Needs
from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import ByteFile
from potluck.formats.gguf_metadata import HEADER_WINDOW_BYTES
from potluck.formats.source import FileTensor, FileTensorSource
from potluck.models.names import FileKind
from potluck.models.program import program_to_count, weight_specs
from potluck.models.registry import stored_weights
from potluck.types.content import FileContent, Manifest
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard
from potluck.weights.divided import read_runs

BLOCK_BYTES = 5 * 2**20
"""If a tensor is decoded from several stored tensors, these are read alternately in pieces of about
this size (``weights.load.BUFFER_BYTES``)."""

_CONTEXT_TOKENS = 1
"""Any value, since the weights that a program reads do not depend on it."""

ByteRange = tuple[FileContent, int, int]
"""A file, and a half-open range of its bytes."""


def stage_needs(
    description: ModelDescription, manifest: Manifest, shards: Sequence[Shard]
) -> tuple[tuple[ByteRange, ...], ...]:
    """Return the ranges that each stage reads from the model's files, which are in ``manifest``.

    They cover its configuration, headers and weights, but not ``text_needs``. The headers of all
    files with tensors of ``shards`` are read. Raise the errors of ``open_headers``, and
    ``ModelFileError`` if a file is not in the manifest.
    """
    small = config_needs(manifest)
    found = []
    config = description.config
    sample = sample_shard(config)
    with closing(open_headers(description, [*shards, sample])) as tensors:
        locate = _Locator(description.files, manifest)
        for shard in shards:
            ranges = [
                (locate.content(file), start, end)
                for file, start, end in weight_ranges(
                    description,
                    tensors,
                    program_to_count(description.config, shard, _CONTEXT_TOKENS),
                )
            ]
            files = {content for content, _, _ in ranges}
            if shard.start_layer == shard.end_layer:
                files |= {
                    locate.content(part.file)
                    for each in stored_weights(
                        config, weight_specs(config, sample), description.files.kind
                    )
                    for name in each.stored_names
                    if name in tensors.tensors
                    for part in tensors.stored_parts(name)
                }
            headers = [
                each for each in locate.headers(tensors) if each[0] in files or locate.is_gguf
            ]
            found.append((*small, *headers, *joined(ranges)))
    return tuple(found)


def sample_shard(config: ModelConfig) -> Shard:
    """Return a layer whose headers stages without layers read to determine the layers' formats."""
    layer = config.num_layers // 2
    return Shard(start_layer=layer, end_layer=layer + 1, num_layers=config.num_layers)


def config_needs(manifest: Manifest) -> tuple[ByteRange, ...]:
    """Return the ranges that every node reads to describe the model: all of its small files."""
    return _whole(manifest, CONFIG_FILES)


def text_needs(description: ModelDescription, manifest: Manifest) -> tuple[ByteRange, ...]:
    """Return the ranges that nodes read to tokenize text or to follow grammars.

    For a directory these are its small files. For a GGUF model these are the headers of its files,
    the first of which has the vocabulary. Raise the errors of ``stage_needs``.
    """
    if description.files.kind is FileKind.HUGGING_FACE:
        return _whole(manifest, sorted(TEXT_FILES))
    locate = _Locator(description.files, manifest)
    with closing(open_headers(description)) as tensors:
        return tuple(locate.headers(tensors))


def weight_ranges(
    description: ModelDescription, tensors: FileTensorSource, program: Program
) -> Iterator[tuple[ByteFile, int, int]]:
    """Yield the ranges of bytes of ``tensors``' files that loading ``program`` reads, in order.

    No range is repeated. Weights that are missing or cannot be used are omitted; loading refuses
    them.
    """
    source = canonical_source(description, tensors, program)
    available = frozenset(source.names())
    seen: set[tuple[str, int, int]] = set()
    for weight in program.weights:
        if weight.name not in available:
            continue
        try:
            num_rows = source.info(weight.name).num_rows
            for first, end in read_runs(weight, num_rows):
                for name, start_row, end_row in source.stored_runs(weight.name, first, end):
                    for tensor, start, stop in _blocks(tensors, name, start_row, end_row):
                        if (key := (tensor.name, start, stop)) not in seen:
                            seen.add(key)
                            yield tensor.file, tensor.offset + start, tensor.offset + stop
        except (KeyError, ModelFileError, UnsupportedModelError):
            continue


def header_ends(tensors: FileTensorSource) -> tuple[tuple[ByteFile, int], ...]:
    """Return the files of ``tensors``, and the offset of the first tensor of each."""
    ends = {id(file): file.size for file in tensors.files}
    for tensor in tensors.tensors.values():
        ends[id(tensor.file)] = min(ends[id(tensor.file)], tensor.offset)
    return tuple((file, ends[id(file)]) for file in tensors.files)


def in_order(ranges: Iterable[ByteRange]) -> Needs:
    """Return ``ranges`` in order, with consecutive ranges of one file grouped."""
    return [
        (content, [(start, end) for _, start, end in group])
        for content, group in itertools.groupby(ranges, key=itemgetter(0))
    ]


def joined(ranges: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """Yield ``ranges``, with adjacent ones joined."""
    last: ByteRange | None = None
    for content, start, end in ranges:
        if start >= end:
            continue
        if last is not None and last[0] == content and last[2] == start:
            last = (content, last[1], end)
            continue
        if last is not None:
            yield last
        last = (content, start, end)
    if last is not None:
        yield last


def announce(description: ModelDescription, tensors: FileTensorSource, program: Program) -> None:
    """Announce the ranges of ``tensors`` that ``program`` reads, if files are identified by
    content.
    """
    view = description.files.view
    if view is not None:
        ranges = [
            (file.content, start, end)
            for file, start, end in weight_ranges(description, tensors, program)
            if isinstance(file, ContentFile)
        ]
        view.want(in_order(joined(ranges)))


class _Locator:
    """Finds files of a model in its manifest."""

    def __init__(self, files: ModelFiles, manifest: Manifest) -> None:
        self.is_gguf = files.kind is FileKind.GGUF
        self._files = files
        self._contents = manifest.contents
        self._found: dict[str, FileContent] = {}  # by path

    def content(self, file: ByteFile) -> FileContent:
        """Return the content of an open file according to the manifest."""
        if isinstance(file, ContentFile):
            return file.content
        found = self._found.get(file.path)
        if found is None:
            name = self._name(file.path)
            if name not in self._contents:
                raise ModelFileError(file.path, f"the model's manifest does not list {name}")
            found = self._found[file.path] = self._contents[name]
        return found

    def headers(self, tensors: FileTensorSource) -> Iterator[ByteRange]:
        """Yield the ranges that are read for the headers of the files of ``tensors``."""
        for file, end in header_ends(tensors):
            if self.is_gguf:
                end = min(file.size, end + 2 * HEADER_WINDOW_BYTES)
            yield self.content(file), 0, end

    def _name(self, path: str) -> str:
        snapshot = self._files.snapshot
        if snapshot is not None and path.startswith(f"{snapshot.repo_id}:"):
            return path.removeprefix(f"{snapshot.repo_id}:")
        base = self._files.path.parent if self.is_gguf else self._files.path
        if snapshot is not None:
            base = snapshot.directory
        return Path(path).relative_to(base).as_posix()


def _blocks(
    tensors: FileTensorSource, name: str, start_row: int, end_row: int
) -> Iterator[tuple[FileTensor, int, int]]:
    step = max(1, BLOCK_BYTES // max(1, tensors.info(name).row_bytes))
    for row in range(start_row, end_row, step):
        yield from tensors.stored_ranges(name, row, min(row + step, end_row))


def _whole(manifest: Manifest, names: Iterable[str]) -> tuple[ByteRange, ...]:
    contents = manifest.contents
    return tuple(
        (contents[name], 0, contents[name].num_bytes)
        for name in names
        if name in contents and contents[name].num_bytes
    )
