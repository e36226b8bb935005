"""Models from the hub: which files of a repository are needed, and bringing them here.

Small files come first, so that a model that cannot be run is refused before its weights are
fetched. Files land in huggingface_hub's own cache (``HF_HOME``); ``HF_TOKEN``, ``HF_ENDPOINT`` and
``HF_HUB_OFFLINE`` work as that library documents them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from potluck.catalog.locate import HubModel
from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SMALL_FILES = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    _INDEX,
)
_LISTING_SECONDS = 10.0
"""As huggingface_hub's own timeout for files; it has none for listings."""

_SPLIT_GGUF = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


def download_model(
    model: HubModel,
    *,
    check_config: Callable[[Path], object],
    check_tokenizer: Callable[[Path], object],
) -> Path:
    """Bring a model's files here, and only those it needs.

    ``check_config`` gets the directory when ``config.json`` lies in it, ``check_tokenizer`` when
    all small files do; they raise if the model cannot be run. Returns the directory, or the path of
    the GGUF file that was named. Progress is shown by huggingface_hub where stderr is a terminal.
    Raises ``ModelNotFoundError`` or ``UnsupportedModelError``.
    """
    with _hub_errors_explained(model):
        repository = _list_repository(model)
        if model.filename is not None:
            first, *_rest = [repository.fetch(name) for name in gguf_parts(model.filename)]
            return first
        if _CONFIG not in repository.files:
            raise _without_config(model, repository.files)
        directory = repository.fetch(_CONFIG).parent
        check_config(directory)
        for filename in _SMALL_FILES:
            if filename in repository.files:
                repository.fetch(filename)
        check_tokenizer(directory)
        for filename in weight_files(model.repo_id, repository.files, directory):
            repository.fetch(filename)
    return directory


def gguf_parts(filename: str) -> list[str]:
    """The file itself, or all parts if it is the first of a split one."""
    match = _SPLIT_GGUF.fullmatch(filename)
    if match is None:
        return [filename]
    stem, count = match.groups()
    return [f"{stem}-{part:05d}-of-{count}.gguf" for part in range(1, int(count) + 1)]


def weight_files(repo_id: str, available: Iterable[str], directory: Path) -> list[str]:
    """The safetensors files that hold the model; ``directory`` has the index if there is one."""
    names = set(available)
    if _INDEX in names:
        try:
            weight_map = json.loads((directory / _INDEX).read_bytes())["weight_map"]
            return sorted({str(filename) for filename in weight_map.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(str(directory / _INDEX), "no sound weight_map") from error
    top_level = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    if "model.safetensors" in top_level:
        return ["model.safetensors"]
    if len(top_level) == 1:
        return top_level
    raise UnsupportedModelError(
        f"{repo_id} has no model.safetensors",
        missing=("safetensors weights",),
        hint="look for a repository of the same model with safetensors or GGUF files",
    )


def cache_directory() -> Path:
    """Where files land; it need not be there yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repository:
    """The files of a repository: on the hub, or only those in the cache when it is unreachable."""

    repo_id: str
    files: frozenset[str]
    is_cached: bool

    def fetch(self, filename: str) -> Path:
        """The file's path on this machine. Without the hub nothing is tried over the network:
        huggingface_hub would try again for half a minute.
        """
        import huggingface_hub

        path = huggingface_hub.hf_hub_download(
            self.repo_id, filename, local_files_only=self.is_cached
        )
        return Path(path)


def _list_repository(model: HubModel) -> _Repository:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        siblings = (
            huggingface_hub.HfApi().model_info(model.repo_id, timeout=_LISTING_SECONDS).siblings
            or []
        )
    except errors.HfHubHTTPError:
        raise  # the hub answered
    except (errors.HTTPError, OSError):  # type: ignore[attr-defined]
        cached = huggingface_hub.try_to_load_from_cache(model.repo_id, model.filename or _CONFIG)
        if not isinstance(cached, str):
            raise
        files = _files_below(Path(cached).parents[(model.filename or _CONFIG).count("/")])
        return _Repository(repo_id=model.repo_id, files=files, is_cached=True)
    names = frozenset(sibling.rfilename for sibling in siblings)
    return _Repository(repo_id=model.repo_id, files=names, is_cached=False)


def _files_below(directory: Path) -> frozenset[str]:
    return frozenset(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )


@contextmanager
def _hub_errors_explained(model: HubModel) -> Iterator[None]:
    from huggingface_hub import errors

    name = model.repo_id if model.filename is None else f"{model.repo_id}:{model.filename}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"{name} is gated on the hub",
            hint="accept its terms on the hub's page, then set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no model {name} that you may read",
            hint="check the name; for a private model set HF_TOKEN",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _out_of_reach(name, error) from error
    except errors.EntryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no file {name}", hint="list the repository's files on the hub's page"
        ) from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(f"{name} is not a hub id", hint="hub ids are org/name") from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        raise _out_of_reach(name, error) from error


def _out_of_reach(name: str, error: Exception) -> ModelNotFoundError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return ModelNotFoundError(
        f"{name} is not on this disk and could not be fetched: {reason[0]}",
        hint="check the network (HF_ENDPOINT, HF_HUB_OFFLINE), or copy the model's directory here",
    )


def _without_config(model: HubModel, available: Iterable[str]) -> ModelNotFoundError:
    ggufs = sorted(name for name in available if name.endswith(".gguf"))
    if ggufs:
        listed = ", ".join(f"{model.repo_id}:{name}" for name in ggufs[:4])
        return ModelNotFoundError(
            f"{model.repo_id} holds {len(ggufs)} GGUF files: name one",
            hint=f"for example {listed}",
        )
    return ModelNotFoundError(
        f"{model.repo_id} has no config.json", hint="give a repository in Hugging Face layout"
    )
