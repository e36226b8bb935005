"""What a model family consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.models.fields import Fields
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource

_WITH_HEAD = "ForCausalLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family as files name it, and how its configuration is read.

    ``name`` is ``model_type`` and ``architecture`` the class in ``config.json``.
    ``gguf_architecture`` is ``general.architecture``, or None if GGUF files of the family call
    themselves otherwise. ``gguf_interleaves_heads``: whether GGUF files interleave the halves of
    the heads of q and k (see ``StoredTensor``).
    """

    name: str
    architecture: str
    gguf_architecture: str | None
    gguf_interleaves_heads: bool
    from_hugging_face: Callable[[Fields], ModelConfig]
    from_gguf: Callable[[Fields, TensorSource], ModelConfig] | None

    @property
    def headless_architecture(self) -> str:
        """The class of the model without a head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "Model"

    @property
    def classifier_architecture(self) -> str:
        """The class of the model with a classifier in the place of the head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "ForSequenceClassification"
