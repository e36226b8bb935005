"""Which files a MODEL is made of.

MODEL is a directory in Hugging Face layout, a ``.gguf`` file, a hub id (``org/name`` or
``org/name:file.gguf``), or ``demo``. Something on the disk goes before a hub id of the same name.
Nothing is parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.models.names import FileKind

DEMO_DIRECTORY = Path(__file__).parent.parent / "data" / "demo"
"""The model in the package."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model lies on this machine.

    ``path`` is the directory of a Hugging Face model, or the (first) ``.gguf`` file. ``name`` is
    what the user called it.
    """

    name: str
    kind: FileKind
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub: a whole repository, or the one GGUF file ``filename`` of it."""

    repo_id: str
    filename: str | None


Download = Callable[[HubModel], Path]
"""Brings a hub model here: the directory, or the file if one was named."""


def locate_model(name: str, download: Download) -> ModelFiles:
    """Find MODEL, downloading it if it is a hub id.

    Raises ``ModelNotFoundError``, ``ModelFileError`` when what is there may not be looked at.
    """
    if name == "demo":
        return ModelFiles(name=name, kind=FileKind.HUGGING_FACE, path=DEMO_DIRECTORY)
    path = Path(name).expanduser()
    try:
        if name and path.exists():
            return _on_disk(name, path)
    except OSError as error:
        raise ModelFileError(
            name, f"cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    hub_model = parse_hub_id(name)
    if hub_model is None or _looks_like_a_path(name):
        raise ModelNotFoundError(
            f"there is no model at {name}",
            hint="give a directory with config.json, a .gguf file, a hub id (org/name), or demo",
        )
    return _on_disk(name, download(hub_model))


def parse_hub_id(name: str) -> HubModel | None:
    """``org/name`` or ``org/name:file.gguf``; None for anything else."""
    repo_id, colon, filename = name.partition(":")
    if not _HUB_ID.fullmatch(repo_id) or (colon and not filename.endswith(".gguf")):
        return None
    return HubModel(repo_id=repo_id, filename=filename or None)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or (name.endswith(".gguf") and ":" not in name)


def _on_disk(name: str, path: Path) -> ModelFiles:
    if path.is_dir():
        if (path / "config.json").is_file():
            return ModelFiles(name=name, kind=FileKind.HUGGING_FACE, path=path)
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        raise ModelNotFoundError(
            f"{path} has no config.json",
            hint=f"name one of its files: {', '.join(ggufs[:5])}"
            if ggufs
            else "give a directory in Hugging Face layout, or a .gguf file",
        )
    if path.suffix != ".gguf":
        raise ModelNotFoundError(
            f"{path} is neither a directory nor a .gguf file",
            hint="for safetensors, give the directory that holds config.json",
        )
    return ModelFiles(name=name, kind=FileKind.GGUF, path=path)
