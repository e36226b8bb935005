"""Find the files of a MODEL.

MODEL is a directory in Hugging Face layout, a ``.gguf`` file, a hub id, or ``demo``. A hub id is
``org/name`` or ``org/name:file.gguf``, with ``org/name@revision`` for a revision other than main.
Local files take precedence over a hub id of the same name. Nothing is parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.catalog.hub_cache import Snapshot
from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.models.names import FileKind

if TYPE_CHECKING:
    from potluck.catalog.manifest_view import ManifestView

DEMO_DIRECTORY = Path(__file__).parent.parent / "data" / "demo"
"""The model in the package."""

_HUB_ID = re.compile(r"(?P<repo_id>[\w.-]+/[\w.-]+)(@(?P<revision>\w[\w.-]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The location of a model on this machine.

    ``path`` is the directory of a Hugging Face model, or the (first) ``.gguf`` file. ``name`` is
    the user's name for it. For a model from the hub, ``snapshot`` lists its files, not all of which
    need be on this disk yet. For a model that is identified by the content of its files, ``view``
    opens them, and ``path`` is the directory to which small files are fetched.
    """

    name: str
    kind: FileKind
    path: Path
    snapshot: Snapshot | None = None
    view: ManifestView | None = None

    @property
    def label(self) -> str:
        """The model's name in messages."""
        return str(self.path) if self.view is None else self.name

    @property
    def pinned_name(self) -> str:
        """A MODEL that refers to exactly these files, even if the hub's main branch changes."""
        if self.snapshot is None:
            return self.name
        pinned = f"{self.snapshot.repo_id}@{self.snapshot.commit}"
        if self.kind is FileKind.HUGGING_FACE:
            return pinned
        return f"{pinned}:{self.path.relative_to(self.snapshot.directory)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub: a whole repository, or its GGUF file ``filename``.

    ``revision`` is a branch, a tag or a commit; None for the main branch.
    """

    repo_id: str
    revision: str | None = None
    filename: str | None = None

    @property
    def name(self) -> str:
        """The name in the form of a MODEL argument."""
        revision = "" if self.revision is None else f"@{self.revision}"
        filename = "" if self.filename is None else f":{self.filename}"
        return f"{self.repo_id}{revision}{filename}"


FindOnHub = Callable[[HubModel], Snapshot]
"""Finds a model's files on the hub, and downloads those that are needed to describe it."""


def locate_model(name: str, find_on_hub: FindOnHub) -> ModelFiles:
    """Find MODEL, with a request to the hub if it is a hub id.

    Raise ``ModelNotFoundError``, and ``ModelFileError`` if it cannot be accessed.
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
    if hub_model is None or looks_like_path(name):
        raise ModelNotFoundError(
            f"no model found at {name}",
            hint="give a directory with config.json, a .gguf file, a hub id (org/name), or demo",
        )
    return files_on_hub(name, hub_model, find_on_hub(hub_model))


def locate_on_disk(name: str) -> ModelFiles | None:
    """Return the files of MODEL, or None if it is a hub id.

    Raise the errors of ``locate_model``.
    """

    def is_on_hub(model: HubModel) -> Snapshot:
        raise _OnHubError

    try:
        return locate_model(name, is_on_hub)
    except _OnHubError:
        return None


class _OnHubError(Exception):
    """The MODEL is a hub id."""


def files_on_hub(name: str, model: HubModel, snapshot: Snapshot) -> ModelFiles:
    """Return the location of a hub model's files, which need not exist yet."""
    if model.filename is None:
        kind, path = FileKind.HUGGING_FACE, snapshot.directory
    else:
        kind, path = FileKind.GGUF, snapshot.path(model.filename)
    return ModelFiles(name=name, kind=kind, path=path, snapshot=snapshot)


def parse_hub_id(name: str) -> HubModel | None:
    """Parse ``org/name``, ``org/name@revision`` or ``org/name:file.gguf``; return None for anything
    else.
    """
    repository, colon, filename = name.partition(":")
    match = _HUB_ID.fullmatch(repository)
    if match is None or (colon and not filename.endswith(".gguf")):
        return None
    return HubModel(repo_id=match["repo_id"], revision=match["revision"], filename=filename or None)


def looks_like_path(name: str) -> bool:
    """Return whether MODEL is a path, even one that does not exist on this machine."""
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
