"""Models in safetensors files: one file, or several with an index.

Headers are read and checked by ``safetensors_header``; this is about which files there are and how
they agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import ReadOnlyFile, quoted
from potluck.formats.safetensors_header import read_header, read_index
from potluck.formats.source import FileTensor, FileTensorSource

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


def open_safetensors(path: Path) -> FileTensorSource:
    """The tensors of a ``*.safetensors`` file, or of a directory in Hugging Face layout.

    A directory has ``model.safetensors``, or ``model.safetensors.index.json`` and the files that
    it names, or a single ``*.safetensors`` (looked for in this order, as ``transformers`` does).
    Raises ``ModelNotFoundError`` when it has none of them, ``ModelFileError`` when a file is
    missing, truncated, corrupt or not what the index says.
    """
    try:
        file_or_index = _find(path)
    except OSError as error:
        raise ModelFileError(
            str(path), f"cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    file_of: Mapping[str, str] | None = None
    paths = [file_or_index]
    if file_or_index.name == _INDEX_FILE:
        with closing(ReadOnlyFile(file_or_index)) as index:
            file_of = read_index(index)
        paths = [file_or_index.parent / name for name in sorted(set(file_of.values()))]
    with ExitStack() as opened:
        files: list[ReadOnlyFile] = []
        source = FileTensorSource(_read_files(paths, file_or_index, files, opened), files)
        if file_of is not None:
            _check_index(file_of, source, file_or_index)
        opened.pop_all()
        return source


def _find(path: Path) -> Path:
    """The file to open for ``path``: tensors, or an index."""
    if not path.is_dir():
        return path
    for name in (_SINGLE_FILE, _INDEX_FILE):
        if os.path.lexists(path / name):  # a link that leads nowhere is named when it is opened
            return path / name
    candidates = sorted(path.glob("*.safetensors"))
    if len(candidates) == 1:
        return candidates[0]
    found = f"{len(candidates)} .safetensors files and no index" if candidates else "no weights"
    raise ModelNotFoundError(
        f"{path}: {found}",
        hint=f"the directory must have {_SINGLE_FILE}, or {_INDEX_FILE} and the files it names",
    )


def _read_files(
    paths: list[Path], named_by: Path, files: list[ReadOnlyFile], opened: ExitStack
) -> Iterator[FileTensor]:
    """The tensors of one file after another, each added to ``files`` and closed by ``opened``.

    A file's descriptor is released once its header is read.
    """
    for path in paths:
        try:
            file = ReadOnlyFile(path)
        except ModelNotFoundError as error:
            if path == named_by:
                raise
            name = path.relative_to(named_by.parent)
            raise ModelFileError(
                str(named_by), f"the file {name}, which it names, is missing"
            ) from error
        opened.callback(file.close)
        files.append(file)
        yield from read_header(file)
        file.release()


def _check_index(file_of: Mapping[str, str], source: FileTensorSource, index_path: Path) -> None:
    """Raise unless every tensor of the index lies where it says.

    Tensors of the files that the index does not know are the model's all the same, as they are
    for ``transformers``.
    """
    path_of = {name: str(index_path.parent / name) for name in set(file_of.values())}
    for name, file_name in file_of.items():
        tensor = source.tensors.get(name)
        if tensor is None or tensor.file.path != path_of[file_name]:
            raise ModelFileError(
                str(index_path),
                f"{quoted(name)} is not in {quoted(file_name)}, where it should be",
            )
