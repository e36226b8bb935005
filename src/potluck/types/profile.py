"""What the headers of a model's files say about its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.errors import ModelFileError, PotluckError, UnsupportedModelError
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorInfo

BytesByFormat = tuple[tuple[str, int], ...]
"""Bytes of tensors by the label of their format, the largest part first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableTensor:
    """A tensor that the files have and that cannot be loaded, with what its error says.

    ``path`` is the file that is broken; None if the tensor is sound and this build lacks what
    ``missing`` names.
    """

    problem: str
    hint: str
    path: str | None = None
    missing: tuple[str, ...] = ()

    def error(self) -> PotluckError:
        """Return a new ``ModelFileError`` or ``UnsupportedModelError``."""
        if self.path is None:
            return UnsupportedModelError(self.problem, missing=self.missing, hint=self.hint)
        return ModelFileError(self.path, self.problem, hint=self.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model's configuration, and its tensors as they are stored, by their canonical names.

    Planning works with it instead of open files. ``path`` is what messages call the model, and
    ``file_names`` has what its files call every tensor that programs read, whether they have it or
    not (of a stack, its first matrix). Those that they have are in ``tensors``, or in ``unusable``
    if they cannot be loaded. Nothing is compared with the shapes that a program needs:
    ``weights.load.check_weights`` does that.

    ``layer_bytes`` has an entry for each decoder layer, ``embedding_bytes`` and ``head_bytes`` are
    of the two ends, the final norm included; a head tied to the embedding is in both. They are the
    bytes of ``tensors`` as stored. A profile of some shards only has the tensors of those, and
    no bytes of other layers. ``decoding_bytes`` is what reading any of the tensors holds in
    addition to its rows, where weights are stored in another form than they are shown in.
    """

    config: ModelConfig
    path: str
    tensors: Mapping[str, TensorInfo]
    file_names: Mapping[str, str]
    unusable: Mapping[str, UnusableTensor]
    layer_bytes: tuple[BytesByFormat, ...]
    embedding_bytes: BytesByFormat
    head_bytes: BytesByFormat
    decoding_bytes: int = 0

    def info(self, name: str) -> TensorInfo:
        """Return what is stored as the canonical tensor ``name``.

        Raise ``KeyError`` if nothing is, and the error of a tensor that cannot be loaded.
        """
        if (unusable := self.unusable.get(name)) is not None:
            raise unusable.error()
        return self.tensors[name]

    def name_in_files(self, name: str) -> str:
        """Return what the files call the canonical tensor ``name``.

        Raise ``KeyError`` if the profile does not cover it.
        """
        return self.file_names[name]
