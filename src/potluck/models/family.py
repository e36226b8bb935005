"""The definition of a model family."""

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
    """A family: its names in files, the reader of its configuration, and its tensor names.

    ``name`` is ``model_type`` and ``architecture`` the class in ``config.json``. ``wrappers`` are
    multimodal models whose text part belongs to the family, as classes by ``model_type``:
    ``from_hugging_face`` gets their ``text_config``. ``aliases`` are other names of the same
    models, in the same form. ``gguf_architectures`` are values of ``general.architecture``, empty
    if GGUF files of the family use another family's name. ``names`` are the tables that differ from
    the usual ones.
    """

    name: str
    architecture: str
    from_hugging_face: Callable[[Fields], ModelConfig]
    gguf_architectures: tuple[str, ...] = ()
    from_gguf: Callable[[Fields, TensorSource], ModelConfig] | None = None
    names: Mapping[FileKind, NameTable] = field(default_factory=dict)
    wrappers: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def name_table(self, file_kind: FileKind) -> NameTable:
        """Return the names of the family's tensors in files of this kind."""
        return self.names.get(file_kind) or USUAL_NAMES[file_kind]

    @property
    def headless_architecture(self) -> str:
        """The class of the model without a head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "Model"

    @property
    def classifier_architecture(self) -> str:
        """The class of the model with a classifier in place of the head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "ForSequenceClassification"
