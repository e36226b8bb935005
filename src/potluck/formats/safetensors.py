"""Models in safetensors files: one file, or several with an index.

``safetensors_header`` reads and checks headers; this module finds the files and checks that they
are consistent.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile, quoted
from potluck.formats.safetensors_header import read_header, read_weight_map
from potluck.formats.source import FileTensor, FileTensorSource

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def open_safetensors(
    path: Path, open_file: OpenFile = ReadOnlyFile, *, names: Collection[str] | None = None
) -> FileTensorSource:
    """Open a ``*.safetensors`` file, an index, or a directory in Hugging Face layout.

    A directory has ``model.safetensors``, or ``model.safetensors.index.json`` and the files that
    it names, or a single ``*.safetensors`` file (searched in this order, as in ``transformers``).
    With ``names``, only the files that the index lists for these tensors are opened. Raise
    ``ModelNotFoundError`` if a directory has none of these, and ``ModelFileError`` if a file is
    missing, truncated, corrupt or inconsistent with the index.
    """
    try:
        file_or_index = _find(path)
    except OSError as error:
        raise ModelFileError(
            str(path), f"cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    file_of: Mapping[str, str] | None = None
    paths = [file_or_index]
    if file_or_index.name == INDEX_FILE:
        file_of = read_index(file_or_index)
        if names is not None:
            file_of = {name: file_name for name, file_name in file_of.items() if name in names}
        paths = [file_or_index.parent / name for name in sorted(set(file_of.values()))]
    with ExitStack() as opened:
        files: dict[Path, ReadableFile] = {}

        def open_next(path: Path) -> ReadableFile:
            file = open_file(path)
            opened.callback(file.close)
            files[path] = file
            return file

        source = FileTensorSource(_read_files(paths, file_or_index, open_next), files.values())
        if file_of is not None:
            _check_index(file_of, source, files, file_or_index)
        opened.pop_all()
        return source


def read_index(path: Path) -> dict[str, str]:
    """Return the ``weight_map`` of an index, from tensor names to files below its directory.

    Raise ``ModelFileError`` if it is invalid.
    """
    with closing(ReadOnlyFile(path)) as file:
        return read_weight_map(file)


def _find(path: Path) -> Path:
    """Return the file to open for ``path``: a file with tensors, or an index."""
    if not path.is_dir():
        return path
    for name in (SINGLE_FILE, INDEX_FILE):
        if os.path.lexists(path / name):  # opening a broken link raises an error that names it
            return path / name
    candidates = sorted(path.glob("*.safetensors"))
    if len(candidates) == 1:
        return candidates[0]
    found = f"{len(candidates)} .safetensors files but no index" if candidates else "no weights"
    raise ModelNotFoundError(
        f"{path}: {found}",
        hint=f"the directory must contain {SINGLE_FILE}, or {INDEX_FILE} and the files it names",
    )


def _read_files(paths: list[Path], named_by: Path, open_file: OpenFile) -> Iterator[FileTensor]:
    """Yield the tensors of each file in turn, and release each file when its header was read."""
    for path in paths:
        try:
            file = open_file(path)
        except ModelNotFoundError as error:
            if path == named_by:
                raise
            name = path.relative_to(named_by.parent)
            raise ModelFileError(
                str(named_by), f"the file {name}, which it names, is missing"
            ) from error
        yield from read_header(file)
        file.release()


def _check_index(
    file_of: Mapping[str, str],
    source: FileTensorSource,
    files: Mapping[Path, ReadableFile],
    index_path: Path,
) -> None:
    """Raise an error unless every tensor of the index is in the file that the index names.

    Tensors in the files that are not in the index also belong to the model, as in ``transformers``.
    """
    file_named = {name: files[index_path.parent / name] for name in set(file_of.values())}
    for name, file_name in file_of.items():
        tensor = source.tensors.get(name)
        if tensor is None or tensor.file is not file_named[file_name]:
            raise ModelFileError(
                str(index_path),
                f"{quoted(name)} is not in {quoted(file_name)}, where it should be",
            )
