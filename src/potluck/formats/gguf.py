"""GGUF models, in one part or split.

``gguf_header`` reads and checks headers when a model is opened; tensors, texts and arrays stay in
the file until they are requested. The names and the metadata of split files are those of
llama.cpp's ``gguf-split``. Tensors are returned as stored: ``potluck.weights`` undoes the changes
of converters (interleaved rows of q and k).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile, quoted
from potluck.formats.gguf_header import GgufHeader, read_header
from potluck.formats.gguf_metadata import Metadata
from potluck.formats.source import MAX_TENSORS, FileTensor, FileTensorSource

PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL | re.ASCII | re.IGNORECASE)
"""The name of a part of a split model, as ``gguf-split`` writes it: its stem, number, the number of
parts, and the ending."""


def is_gguf(name: str) -> bool:
    """Return whether a file is in GGUF format, by its name."""
    return name.lower().endswith(".gguf")


def gguf_parts(name: str) -> list[str]:
    """Return the file itself, or all parts of the split model that it is a part of."""
    match = PART_NAME.fullmatch(name)
    if match is None:
        return [name]
    stem, _, count, ending = match.groups()
    return [f"{stem}-{part:05d}-of-{count}{ending}" for part in range(1, int(count) + 1)]


class GgufSource(FileTensorSource):
    """The tensors and the metadata of a GGUF model. Owns its files."""

    def __init__(
        self, tensors: Iterable[FileTensor], files: Sequence[ReadableFile], metadata: Metadata
    ) -> None:
        super().__init__(tensors, files)
        self.metadata = metadata
        """The metadata of the first part, which has all that concerns the model. Texts and arrays
        can be read from it until the source is closed."""


def open_gguf(path: Path, open_file: OpenFile = ReadOnlyFile) -> GgufSource:
    """Open the model in ``path``, which may be any part of a split model.

    Raise ``ModelNotFoundError`` if there is no such file; ``ModelFileError`` if a part is missing,
    truncated or corrupt; and ``UnsupportedModelError`` if the version or byte order is not
    supported.
    """
    with ExitStack() as opened:
        parts = _read_parts(path, open_file, opened)
        source = GgufSource(
            (tensor for part in parts for tensor in part.header.tensors),
            [part.file for part in parts],
            parts[0].header.metadata,
        )
        num_tensors = len(source.tensors)
        expected = parts[0].count("split.tensors.count", num_tensors)
        if len(parts) > 1 and num_tensors != expected:
            raise ModelFileError(
                str(path),
                f"its {len(parts)} parts have {num_tensors} tensors, not {expected}",
                hint="a part is damaged or belongs to another model: download them again",
            )
        opened.pop_all()
        return source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    file: ReadableFile
    header: GgufHeader

    def count(self, key: str, default: int) -> int:
        """Return an integer of the metadata."""
        value = self.header.metadata.get(key, default)
        if type(value) is not int or value < 0:
            raise ModelFileError(self.file.path, f"metadata {quoted(key)} is not a valid count")
        return value


def _read_parts(path: Path, open_file: OpenFile, opened: ExitStack) -> list[_Part]:
    given = _read_part(path, open_file, opened)
    num_parts = given.count("split.count", 1)
    if num_parts <= 1:
        return [given]
    name = PART_NAME.fullmatch(path.name)
    if name is None or int(name[3]) != num_parts:
        raise ModelFileError(
            str(path),
            f"one of {num_parts} parts, but its name does not have the form "
            f"NAME-00001-of-{num_parts:05}.gguf",
            hint="rename the parts to their original names",
        )
    parts: list[_Part] = []
    num_tensors = 0
    for index, part_name in enumerate(gguf_parts(path.name)):
        part_path = path.with_name(part_name)
        try:
            part = given if part_path == path else _read_part(part_path, open_file, opened)
        except ModelNotFoundError as error:
            raise ModelFileError(
                str(part_path),
                f"missing; the model has {num_parts} parts",
                hint="put all parts into one directory",
            ) from error
        if part.count("split.no", 0) != index or part.count("split.count", 1) != num_parts:
            raise ModelFileError(
                part.file.path, f"its metadata does not identify it as part {index + 1}"
            )
        num_tensors += len(part.header.tensors)
        if num_tensors > MAX_TENSORS:
            raise ModelFileError(str(path), f"its parts have more than {MAX_TENSORS} tensors")
        parts.append(part)
    return parts


def _read_part(path: Path, open_file: OpenFile, opened: ExitStack) -> _Part:
    file = open_file(path)
    opened.callback(file.close)
    header = read_header(file)
    file.release()
    return _Part(file=file, header=header)
