"""The profile of a model's weights, read from the headers of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.errors import ModelFileError, PotluckError, UnsupportedModelError
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorInfo

BytesByFormat = tuple[tuple[str, int], ...]
"""The bytes of tensors by the label of their format, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableTensor:
    """A tensor that is in the files but cannot be loaded, with the data of its error.

    ``path`` is the file that is broken; None if the tensor is valid but this build lacks the
    feature named by ``missing``.
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
    """A model's configuration, and its stored tensors by their canonical names.

    Planning uses it instead of open files. ``path`` is the model's name in messages.
    ``file_names`` has the name in the files of every tensor that programs read (for a stack, of its
    first matrix), whether it exists or not, with its file if there are several. Existing tensors
    are in ``tensors``, or in ``unusable`` if they cannot be loaded. The shapes are not compared
    with those that a program requires; ``weights.load.check_weights`` does that.

    ``layer_bytes`` has an entry for each decoder layer; ``embedding_bytes`` and ``head_bytes`` are
    for the two ends, including the final norm. A head tied to the embedding is in both. They are
    the stored bytes of ``tensors``. A profile of only some shards has only their tensors, and no
    bytes of other layers. ``decoding_bytes`` is the memory needed to read any of the tensors, in
    addition to its rows, if weights are stored encoded.
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
        """Return the stored tensor with the canonical name ``name``.

        Raise ``KeyError`` if there is none, and the tensor's error if it cannot be loaded.
        """
        if (unusable := self.unusable.get(name)) is not None:
            raise unusable.error()
        return self.tensors[name]

    def name_in_files(self, name: str) -> str:
        """Return the name in the files of the canonical tensor ``name``.

        Raise ``KeyError`` if the profile does not cover it.
        """
        return self.file_names[name]
