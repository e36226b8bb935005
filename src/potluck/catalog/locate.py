"""Find the files of a MODEL.

MODEL is a directory in Hugging Face layout or with one GGUF model, a ``.gguf`` file, a hub id, or
``demo``. A hub id is ``org/name``, ``org/name:file.gguf`` or ``org/name:Q4_K_M``, with
``org/name@revision`` for a revision other than main; ``hf.co/`` before it changes nothing. Local
files take precedence over a hub id of the same name. No file of a model is parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from potluck.catalog.file_names import ADAPTER_CONFIG, CONFIG
from potluck.catalog.hub_cache import Snapshot
from potluck.errors import ModelFileError, ModelNotFoundError, PotluckError
from potluck.formats.gguf import PART_NAME, gguf_parts, is_gguf
from potluck.formats.json_reader import read_document
from potluck.formats.safetensors import other_weights, weights_name
from potluck.models.names import FileKind
from potluck.types.quantities import format_count

if TYPE_CHECKING:
    from potluck.catalog.manifest_view import ManifestView


DEMO_DIRECTORY = Path(__file__).parent.parent / "data" / "demo"
"""The model in the package."""

_HUB_ID = re.compile(
    r"(?P<repo_id>[\w.-]+/[\w.-]+)(@(?P<revision>\w[\w.-]*))?"
    r"(:((?P<filename>.*\.gguf)|(?P<tag>[\w-]+)))?",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)
_HUB_HOST = re.compile(r"(https://)?(hf\.co|huggingface\.co)/")
_ANY_TAG = "latest"
"""The tag of Ollama that stands for no tag."""

_MAX_ADAPTER_BYTES = 2**20


_NO_MODEL = re.compile(r"mmproj|(^|[-._])imatrix([-._]|$)", re.IGNORECASE)
_MIXTURE = re.compile(r"(^|[-._/])UD-$", re.IGNORECASE)
"""Repositories by Unsloth have most quantizations twice: plain, and as a mixture with this mark."""
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """The names of the files in ``place``, a folder or a repository on the hub.

    ``place``, the ``separator`` and a name are the MODEL argument for one of the files.

    A GGUF model is one file, or a split set that is named by its first part. The vision part of a
    model (``mmproj``) and the importance matrix it was quantized with are GGUF files, too, but no
    models.
    """

    place: str
    names: Collection[str]
    separator: str

    @property
    def ggufs(self) -> list[str]:
        """The GGUF models; of a split model, the first part."""
        return sorted(name for name in self.names if is_gguf(name) and _is_model(name))

    def lone_gguf(self) -> str | None:
        """Return the GGUF model that the whole stands for: the only one, if it has no safetensors.

        None if there is none or more than one.
        """
        models = self.ggufs
        is_hugging_face = CONFIG in self.names and weights_name(self.names) is not None
        return models[0] if len(models) == 1 and not is_hugging_face else None

    def tagged_gguf(self, tag: str) -> str:
        """Return the GGUF model whose name contains a quantization such as ``Q4_K_M``.

        Raise ``ModelNotFoundError`` if there is none, or more than one.
        """
        models = self.ggufs
        pattern = re.compile(rf"(?:^|[-._/])({re.escape(tag)})(?:[-./]|$)", re.IGNORECASE)
        found = {name: match for name in models if (match := pattern.search(name))}
        plain = [
            name for name, match in found.items() if not _MIXTURE.search(name[: match.start(1)])
        ]
        chosen = plain or [*found]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise ModelNotFoundError(
                f"{self.place} has {len(chosen)} GGUF models with {tag} in their names",
                hint=f"name its file: {self._shown(chosen)}",
            )
        raise ModelNotFoundError(
            f"{self.place} has no GGUF model with {tag} in its name",
            hint=f"it has {self._shown(models)}" if models else "it has no GGUF models at all",
        )

    def problem(self, adapted: str = "") -> ModelNotFoundError | None:
        """Return why this is not a model in Hugging Face layout; None if it may be one.

        ``adapted`` is the base model that its ``adapter_config.json`` names. A directory with a
        configuration and no weights at all may be one: its weights may be elsewhere.
        """
        has_weights = weights_name(self.names) is not None
        if CONFIG in self.names and has_weights:
            return None
        if models := self.ggufs:
            some = "a GGUF model" if len(models) == 1 else f"{len(models)} GGUF models"
            return ModelNotFoundError(
                f"{self.place} has {some}", hint=f"name its file: {self._shown(models)}"
            )
        if ADAPTER_CONFIG in self.names and not has_weights:
            base = adapted or "its base model"
            return ModelNotFoundError(
                f"{self.place} is an adapter for {base}, not a model",
                hint=f"merge it into {base} (merge_and_unload of peft), save the result, and give "
                "that directory",
            )
        if others := sorted(filter(is_gguf, self.names)):
            return ModelNotFoundError(
                f"{self.place} has no GGUF model, only {others[0]}", hint=_missing_part(others[0])
            )
        if CONFIG in self.names:
            return None
        if not has_weights and (other := other_weights(self.place, self.names)):
            return other
        return ModelNotFoundError(
            f"{self.place} has no {CONFIG}",
            hint="give a directory or repository in Hugging Face layout",
        )

    def _shown(self, names: Sequence[str]) -> str:
        more = ", …" if len(names) > _MAX_SHOWN else ""
        return (
            ", ".join(f"{self.place}{self.separator}{name}" for name in names[:_MAX_SHOWN]) + more
        )


def _is_model(name: str) -> bool:
    part = PART_NAME.fullmatch(name)
    is_first = part is None or int(part[2]) == 1
    return is_first and _NO_MODEL.search(PurePosixPath(name).name) is None


def _missing_part(other: str) -> str:
    part = PART_NAME.fullmatch(other)
    if part is None:
        return "it is no model by itself: give the file of the model"
    return f"{gguf_parts(other)[0]} is missing: all parts must be in one place"


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

    ``tag`` is a quantization in the name of that file, as users of llama.cpp and Ollama give it.
    ``revision`` is a branch, a tag or a commit; None for the main branch.
    """

    repo_id: str
    revision: str | None = None
    filename: str | None = None
    tag: str | None = None

    @property
    def name(self) -> str:
        """The name in the form of a MODEL argument."""
        revision = "" if self.revision is None else f"@{self.revision}"
        file = self.filename or self.tag
        return f"{self.repo_id}{revision}{'' if file is None else f':{file}'}"

    def gguf_in(self, snapshot: Snapshot) -> str | None:
        """Return the GGUF file of the repository that this names; None if it is in safetensors.

        Raise ``ModelNotFoundError`` if no file, or more than one, has the tag.
        """
        listing = listing_of(snapshot)
        if self.tag is not None:
            with explained(snapshot):
                return listing.tagged_gguf(self.tag)
        return self.filename or listing.lone_gguf()


def locate_model(name: str) -> ModelFiles | HubModel:
    """Return the files of MODEL on this disk, or the model that it names if it is a hub id.

    Raise ``ModelNotFoundError``, and ``ModelFileError`` if it cannot be accessed.
    """
    if name == "demo":
        return ModelFiles(name=name, kind=FileKind.HUGGING_FACE, path=DEMO_DIRECTORY)
    path = Path(name)
    with suppress(RuntimeError):  # the home of a user that this machine does not have
        path = path.expanduser()
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
            hint="give a directory with a model, a .gguf file, a hub id (org/name), or demo",
        )
    return hub_model


def locate_on_disk(name: str) -> ModelFiles | None:
    """Return the files of MODEL, or None if it is a hub id.

    Raise the errors of ``locate_model``.
    """
    found = locate_model(name)
    return found if isinstance(found, ModelFiles) else None


def files_on_hub(name: str, model: HubModel, snapshot: Snapshot) -> ModelFiles:
    """Return the location of a hub model's files, which need not exist yet.

    Raise ``ModelNotFoundError`` if the repository does not have the model.
    """
    filename = model.gguf_in(snapshot)
    if filename is None:
        kind, path = FileKind.HUGGING_FACE, snapshot.directory
    else:
        kind, path = FileKind.GGUF, snapshot.path(filename)
    return ModelFiles(name=name, kind=kind, path=path, snapshot=snapshot)


def parse_hub_id(name: str) -> HubModel | None:
    """Parse a hub id; return None for anything else."""
    match = _HUB_ID.fullmatch(_HUB_HOST.sub("", name, count=1))
    if match is None:
        return None
    tag = match["tag"]
    return HubModel(
        repo_id=match["repo_id"],
        revision=match["revision"],
        filename=match["filename"],
        tag=None if tag == _ANY_TAG else tag,
    )


def looks_like_path(name: str) -> bool:
    """Return whether MODEL is a path, even one that does not exist on this machine."""
    return name.startswith((".", "/", "~")) or (is_gguf(name) and ":" not in name)


def listing_of(snapshot: Snapshot) -> FileListing:
    """Return the names of a repository's files."""
    return FileListing(place=snapshot.repo_id, names=snapshot.files, separator=":")


@contextmanager
def explained(snapshot: Snapshot) -> Iterator[None]:
    """Correct errors about missing files of a repository whose list of files is not known."""
    try:
        yield
    except ModelNotFoundError as error:
        if snapshot.is_listed:
            raise
        found = format_count(len(snapshot.files), "file")
        raise ModelNotFoundError(
            f"{snapshot.repo_id}: the files on this disk ({found}) do not suffice, and the Hub "
            "could not be asked for others",
            hint="check the network (HF_ENDPOINT, HF_HUB_OFFLINE), or download the model where it "
            "can be reached (potluck fetch), and copy it",
        ) from error


def adapted_model(adapter_config: Path) -> str:
    """Return the base model of an adapter; empty if its configuration does not name it."""
    try:
        document = read_document(adapter_config, _MAX_ADAPTER_BYTES)
    except PotluckError:
        return ""
    base = document.get("base_model_name_or_path")
    return base if isinstance(base, str) and base.isprintable() else ""


def _on_disk(name: str, path: Path) -> ModelFiles:
    if path.is_dir():
        names = frozenset(each.name for each in path.iterdir())
        listing = FileListing(place=str(path), names=names, separator="/")
        if (lone := listing.lone_gguf()) is not None:
            return ModelFiles(name=name, kind=FileKind.GGUF, path=path / lone)
        if problem := listing.problem(adapted_model(path / ADAPTER_CONFIG)):
            raise problem
        return ModelFiles(name=name, kind=FileKind.HUGGING_FACE, path=path)
    if not is_gguf(path.name):
        raise ModelNotFoundError(
            f"{path} is neither a directory nor a .gguf file",
            hint="for safetensors, give the directory that holds config.json",
        )
    return ModelFiles(name=name, kind=FileKind.GGUF, path=path)
