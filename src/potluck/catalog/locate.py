"""Which files a MODEL is made of.

MODEL is a directory in Hugging Face layout, a ``.gguf`` file, a hub id, or ``demo``. A hub id is
``org/name`` or ``org/name:file.gguf``, with ``org/name@revision`` for another revision than main.
Something on the disk goes before a hub id of the same name. Nothing is parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from potluck.catalog.hub_cache import Snapshot
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.models.names import FileKind

DEMO_DIRECTORY = Path(__file__).parent.parent / "data" / "demo"
"""The model in the package."""

_HUB_ID = re.compile(r"(?P<repo_id>[\w.-]+/[\w.-]+)(@(?P<revision>\w[\w.-]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model lies on this machine.

    ``path`` is the directory of a Hugging Face model, or the (first) ``.gguf`` file. ``name`` is
    what the user called it. Of a model from the hub, ``snapshot`` says which files there are; not
    all of them need be on this disk yet.
    """

    name: str
    kind: FileKind
    path: Path
    snapshot: Snapshot | None = None

    @property
    def pinned_name(self) -> str:
        """A MODEL that stays the very same files, whatever happens to the hub's main branch."""
        if self.snapshot is None:
            return self.name
        pinned = f"{self.snapshot.repo_id}@{self.snapshot.commit}"
        if self.kind is FileKind.HUGGING_FACE:
            return pinned
        return f"{pinned}:{self.path.relative_to(self.snapshot.directory)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub: a whole repository, or the one GGUF file ``filename`` of it.

    ``revision`` is a branch, a tag or a commit; None for the main branch.
    """

    repo_id: str
    revision: str | None = None
    filename: str | None = None

    @property
    def name(self) -> str:
        """As MODEL has it."""
        revision = "" if self.revision is None else f"@{self.revision}"
        filename = "" if self.filename is None else f":{self.filename}"
        return f"{self.repo_id}{revision}{filename}"


FindOnHub = Callable[[HubModel], Snapshot]
"""Finds out what the hub has of a model, and brings what is needed to know it."""


def locate_model(name: str, find_on_hub: FindOnHub) -> ModelFiles:
    """Find MODEL, asking the hub if it is a hub id.

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
    return files_on_hub(name, hub_model, find_on_hub(hub_model))


def locate_on_disk(name: str) -> ModelFiles | None:
    """The files of a MODEL that is no hub id; None for one that is. Raises as ``locate_model``."""

    def is_on_hub(model: HubModel) -> Snapshot:
        raise _OnHubError

    try:
        return locate_model(name, is_on_hub)
    except _OnHubError:
        return None


class _OnHubError(Exception):
    """A MODEL is a hub id."""


def files_on_hub(name: str, model: HubModel, snapshot: Snapshot) -> ModelFiles:
    """Where the files of a hub model are, or will be."""
    if model.filename is None:
        kind, path = FileKind.HUGGING_FACE, snapshot.directory
    else:
        kind, path = FileKind.GGUF, snapshot.path(model.filename)
    return ModelFiles(name=name, kind=kind, path=path, snapshot=snapshot)


def parse_hub_id(name: str) -> HubModel | None:
    """``org/name``, ``org/name@revision``, ``org/name:file.gguf``; None for anything else."""
    repository, colon, filename = name.partition(":")
    match = _HUB_ID.fullmatch(repository)
    if match is None or (colon and not filename.endswith(".gguf")):
        return None
    return HubModel(repo_id=match["repo_id"], revision=match["revision"], filename=filename or None)


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
