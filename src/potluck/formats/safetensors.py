"""Models in safetensors files: one file, or several with an index.

``safetensors_header`` reads and checks headers; this module finds the files and checks that they
are consistent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile, quoted
from potluck.formats.safetensors_header import read_header, read_weight_map
from potluck.formats.source import FileTensor, FileTensorSource

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_OTHER_MODEL = "the file is damaged, or belongs to another model: download it again"

_CONSOLIDATED = "consolidated."
"""The weights under the names of Mistral's own library, often beside those of Hugging Face."""
_ADAPTER = "adapter_model."
_PICKLE = re.compile(r"pytorch_model[^/]*\.bin|[^/]*\.(pth|pt|ckpt)")


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

        source = FileTensorSource(
            _read_files(paths, file_or_index, open_next, file_of), files.values()
        )
        if file_of is not None:
            _check_index(file_of, source, files, file_or_index)
        opened.pop_all()
        return source


def weights_name(names: Collection[str]) -> str | None:
    """Return the file of a directory through which its weights are opened; None if there is none.

    As in ``transformers``, it is ``model.safetensors``, else the index, else the only
    ``*.safetensors`` file.
    """
    for name in (SINGLE_FILE, INDEX_FILE):
        if name in names:
            return name
    found = _top_level(names)
    return found[0] if len(found) == 1 else None


def missing_weights(place: str, names: Collection[str]) -> ModelNotFoundError:
    """Return the error for a directory or repository without safetensors of its model."""
    if other := other_weights(place, names):
        return other
    num_found = len(_top_level(names))
    found = f"{num_found} .safetensors files but no index" if num_found else "no weights"
    return ModelNotFoundError(
        f"{place}: {found}",
        hint=f"the directory must contain {SINGLE_FILE}, or {INDEX_FILE} and the files it names",
    )


def other_weights(place: str, names: Collection[str]) -> ModelNotFoundError | None:
    """Return the error for weights that are only in a layout that is not read; None without any."""
    pickles = sorted(name for name in names if _PICKLE.fullmatch(name))
    if pickles:
        return ModelNotFoundError(
            f"{place}: no weights but {pickles[0]}, a pickle file",
            hint="pickle files can run programs and are not read: convert the model, for example "
            "with save_pretrained of transformers, or get it as safetensors or GGUF",
        )
    if any(name.startswith(_CONSOLIDATED) for name in names):
        return ModelNotFoundError(
            f"{place}: no weights but {_CONSOLIDATED}safetensors, the layout of Mistral's library",
            hint=f"get the model in Hugging Face layout: config.json and {SINGLE_FILE}",
        )
    return None


def _top_level(names: Iterable[str]) -> list[str]:
    """Return the files that can be the only file of a model."""
    return sorted(
        name
        for name in names
        if name.endswith(".safetensors")
        and "/" not in name
        and not name.startswith((_CONSOLIDATED, _ADAPTER))
    )


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
    names = [each.name for each in path.iterdir()]
    name = weights_name(names)
    if name is None:
        raise missing_weights(str(path), names)
    return path / name  # it may be a broken link; opening it raises an error that names it


def _read_files(
    paths: list[Path],
    named_by: Path,
    open_file: OpenFile,
    file_of: Mapping[str, str] | None,
) -> Iterator[FileTensor]:
    """Yield the tensors of each file in turn, and release each file when its header was read.

    Raise an error for a file with a tensor that the index lists for another one.
    """
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
        for tensor in read_header(file):
            listed = None if file_of is None else file_of.get(tensor.name)
            if listed is not None and named_by.parent / listed != path:
                raise ModelFileError(
                    file.path,
                    f"it has {quoted(tensor.name)}, which {INDEX_FILE} lists for {quoted(listed)}",
                    hint=_OTHER_MODEL,
                )
            yield tensor
        file.release()


def _check_index(
    file_of: Mapping[str, str],
    source: FileTensorSource,
    files: Mapping[Path, ReadableFile],
    index_path: Path,
) -> None:
    """Raise an error for a file without a tensor that the index lists for it.

    Tensors in the files that are not in the index also belong to the model, as in ``transformers``.
    """
    file_named = {name: files[index_path.parent / name] for name in set(file_of.values())}
    for name, file_name in file_of.items():
        tensor = source.tensors.get(name)
        if tensor is None or tensor.file is not file_named[file_name]:
            raise ModelFileError(
                file_named[file_name].path,
                f"it has no {quoted(name)}, which {INDEX_FILE} lists for it",
                hint=_OTHER_MODEL,
            )
