"""Which model a folder or a repository holds, by the names of its files.

A GGUF model is one file, or a split set that is named by its first part. The vision part of a model
(``mmproj``) and the importance matrix it was quantized with are GGUF files, too, but no models.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.errors import ModelNotFoundError
from potluck.formats.gguf import PART_NAME, gguf_parts, is_gguf
from potluck.formats.safetensors import other_weights, weights_name

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"

_NO_MODEL = re.compile(r"mmproj|(^|[-._])imatrix([-._]|$)", re.IGNORECASE)
_MIXTURE = re.compile(r"(^|[-._/])UD-$", re.IGNORECASE)
"""Repositories by Unsloth have most quantizations twice: plain, and as a mixture with this mark."""
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """The names of the files in ``place``, a folder or a repository on the hub.

    ``place``, the ``separator`` and a name are the MODEL argument for one of the files.
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
