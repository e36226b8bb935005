"""The families of models, and a table of the names by which model files refer to them.

A family's module is imported when a model of the family is read, because a process that serves one
model needs none of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType

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
        return self.names.get(file_kind, USUAL_NAMES[file_kind])

    @property
    def headless_architecture(self) -> str:
        """The class of the model without a head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "Model"

    @property
    def classifier_architecture(self) -> str:
        """The class of the model with a classifier in place of the head."""
        return self.architecture.removesuffix(_WITH_HEAD) + "ForSequenceClassification"


FAMILY_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "llama.LLAMA": ("llama",),
        "mistral.MISTRAL": ("mistral", "mistral3"),
        "qwen2.QWEN2": ("qwen2",),
        "qwen3.QWEN3": ("qwen3",),
        "qwen3.QWEN3_MOE": ("qwen3_moe", "qwen3moe"),
        "gemma2.GEMMA2": ("gemma2",),
        "gemma3.GEMMA3": ("gemma3_text", "gemma3"),
        "gemma4.GEMMA4": ("gemma4_text", "gemma4"),
        "gemma4.GEMMA4_UNIFIED": ("gemma4_unified_text", "gemma4_unified"),
        "phi3.PHI3": ("phi3",),
        "mistral.MINISTRAL3": ("ministral3", "mistral3"),
        "smollm3.SMOLLM3": ("smollm3",),
        "granite.GRANITE": ("granite",),
        "granite_hybrid.GRANITE_HYBRID": ("granitemoehybrid", "granitehybrid"),
        "glm4.GLM4": ("glm4",),
        "seed_oss.SEED_OSS": ("seed_oss",),
        "hunyuan_dense.HUNYUAN_DENSE": ("hunyuan_v1_dense", "hunyuan-dense"),
        "ernie4_5.ERNIE4_5": ("ernie4_5",),
        "cohere2.COHERE2": ("cohere2",),
        "exaone4.EXAONE4": ("exaone4",),
        "olmo2.OLMO2": ("olmo2",),
        "olmo2.OLMO3": ("olmo3",),
        "gpt_oss.GPT_OSS": ("gpt_oss", "gpt-oss"),
        "glm4_moe.GLM4_MOE": ("glm4_moe", "glm4moe"),
        "qwen2.QWEN2_MOE": ("qwen2_moe", "qwen2moe"),
        "mixtral.MIXTRAL": ("mixtral",),
        "minimax_m2.MINIMAX_M2": ("minimax_m2", "minimax-m2"),
        "olmoe.OLMOE": ("olmoe",),
        "granite.GRANITE_MOE": ("granitemoe",),
        "granite.GRANITE_MOE_SHARED": ("granitemoeshared",),
        "ernie4_5.ERNIE4_5_MOE": ("ernie4_5_moe", "ernie4_5-moe"),
        "qwen3_next.QWEN3_NEXT": ("qwen3_next", "qwen3next"),
        "qwen3_5.QWEN3_5": ("qwen3_5_text", "qwen3_5", "qwen35"),
        "qwen3_5.QWEN3_5_MOE": ("qwen3_5_moe_text", "qwen3_5_moe", "qwen35moe"),
        "deepseek.DEEPSEEK_V2": ("deepseek_v2",),
        "deepseek.DEEPSEEK_V3": ("deepseek_v3", "kimi_k2", "deepseek2"),
        "glm4_moe.GLM4_MOE_LITE": ("glm4_moe_lite",),
        "lfm2.LFM2": ("lfm2", "lfm2_vl"),
        "lfm2.LFM2_MOE": ("lfm2_moe", "lfm2moe"),
        "mamba2.MAMBA2": ("mamba2",),
        "nemotron_h.NEMOTRON_H": ("nemotron_h", "nemotron_h_moe"),
        "falcon_h1.FALCON_H1": ("falcon_h1", "falcon-h1"),
    }
)
"""The names of each family, by the module and the constant that define it.

The first is its ``model_type``. Then follow those of its wrappers and its aliases, and the values
of ``general.architecture`` in GGUF files. Families may share these.
"""


def all_families() -> tuple[Family, ...]:
    """Return every family, in the order of the table. This imports all of their modules."""
    return tuple(map(_load, FAMILY_NAMES))


def families_named(name: str) -> Iterator[Family]:
    """Yield the families that a model file may mean by ``name``, in the order of the table."""
    return (_load(location) for location, names in FAMILY_NAMES.items() if name in names)


def family_of(model_type: str) -> Family:
    """Return the family whose ``model_type`` this is. Raises ``KeyError`` if there is none."""
    for location, names in FAMILY_NAMES.items():
        if names[0] == model_type:
            return _load(location)
    raise KeyError(model_type)


def _load(location: str) -> Family:
    module, _, constant = location.partition(".")
    family: Family = getattr(import_module(f"potluck.models.{module}"), constant)
    return family
