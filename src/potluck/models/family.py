"""What a model family consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from potluck.models.fields import Fields
from potluck.models.names import USUAL_NAMES, FileKind, NameTable
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource

_WITH_HEAD = "ForCausalLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family as files name it, how its configuration is read, and what it calls its tensors.

    ``name`` is ``model_type`` and ``architecture`` the class in ``config.json``. ``wrappers`` are
    models of several kinds of input whose text part is of the family, class by ``model_type``: the
    values of their ``text_config`` are what ``from_hugging_face`` gets. ``aliases`` are other names
    of the same models, likewise. ``gguf_architectures`` are
    values of ``general.architecture``, none if GGUF files of the family call themselves otherwise.
    """

    name: str
    architecture: str
    gguf_architectures: tuple[str, ...]
    from_hugging_face: Callable[[Fields], ModelConfig]
    from_gguf: Callable[[Fields, TensorSource], ModelConfig] | None
    names: Mapping[FileKind, NameTable] = field(default_factory=lambda: USUAL_NAMES)
    wrappers: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def headless_architecture(self) -> str:
        """The class of the model without a head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "Model"

    @property
    def classifier_architecture(self) -> str:
        """The class of the model with a classifier in the place of the head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "ForSequenceClassification"
