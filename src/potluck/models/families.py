"""The families: a table of the names by which model files refer to them.

A family's module is imported when a model of the family is read, because a process that serves one
model needs none of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from potluck.models.family import Family

FAMILY_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "llama.LLAMA": ("llama",),
        "mistral.MISTRAL": ("mistral", "mistral3"),
        "qwen2.QWEN2": ("qwen2",),
        "qwen3.QWEN3": ("qwen3",),
        "qwen3_moe.QWEN3_MOE": ("qwen3_moe", "qwen3moe"),
        "gemma2.GEMMA2": ("gemma2",),
        "gemma3.GEMMA3": ("gemma3_text", "gemma3"),
        "gemma4.GEMMA4": ("gemma4_text", "gemma4"),
        "gemma4.GEMMA4_UNIFIED": ("gemma4_unified_text", "gemma4_unified"),
        "phi3.PHI3": ("phi3",),
        "ministral3.MINISTRAL3": ("ministral3", "mistral3"),
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
        "qwen2_moe.QWEN2_MOE": ("qwen2_moe", "qwen2moe"),
        "mixtral.MIXTRAL": ("mixtral",),
        "minimax_m2.MINIMAX_M2": ("minimax_m2", "minimax-m2"),
        "olmoe.OLMOE": ("olmoe",),
        "granite_moe.GRANITE_MOE": ("granitemoe",),
        "granite_moe.GRANITE_MOE_SHARED": ("granitemoeshared",),
        "ernie4_5_moe.ERNIE4_5_MOE": ("ernie4_5_moe", "ernie4_5-moe"),
        "qwen3_next.QWEN3_NEXT": ("qwen3_next", "qwen3next"),
        "qwen3_5.QWEN3_5": ("qwen3_5_text", "qwen3_5", "qwen35"),
        "qwen3_5.QWEN3_5_MOE": ("qwen3_5_moe_text", "qwen3_5_moe", "qwen35moe"),
        "deepseek_v2.DEEPSEEK_V2": ("deepseek_v2",),
        "deepseek_v3.DEEPSEEK_V3": ("deepseek_v3", "kimi_k2", "deepseek2"),
        "glm4_moe_lite.GLM4_MOE_LITE": ("glm4_moe_lite",),
        "lfm2.LFM2": ("lfm2", "lfm2_vl"),
        "lfm2_moe.LFM2_MOE": ("lfm2_moe", "lfm2moe"),
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
