"""Canonical tensor names and what model files call them.

All families share one map per kind of file. Hugging Face names are those of ``transformers``'
modules, GGUF names those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

from potluck.types.program import WeightSpec
from potluck.types.tensor import StoredTensor


class FileKind(enum.Enum):
    """The kinds of files that models come in."""

    HUGGING_FACE = "hugging_face"
    GGUF = "gguf"


GGUF_ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that configures rope and that no op reads."""

EMBEDDING = "embed.weight"
FINAL_NORM = "norm.weight"
HEAD = "head.weight"
HUGGING_FACE_PREFIX = "model."
"""Of every tensor but the head's and the classifier's."""
CLASSIFIER = "classifier.weight"


def layer_tensor(layer: int, name: str) -> str:
    """The canonical name of a tensor of one layer: ``layers.3.attn.q.weight``."""
    return f"layers.{layer}.{name}"


_STEMS: Mapping[FileKind, Mapping[str, str]] = {
    FileKind.HUGGING_FACE: {
        "embed": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
        "classifier": "score",
    },
    FileKind.GGUF: {
        "embed": "token_embd",
        "norm": "output_norm",
        "head": "output",
        "classifier": "cls.output",
    },
}

_LAYER_PREFIXES: Mapping[FileKind, str] = {
    FileKind.HUGGING_FACE: "model.layers.",
    FileKind.GGUF: "blk.",
}

_EACH_EXPERT = "{expert}"
"""In a name: the index of an expert, each of which is a tensor of its own."""

_LAYER_STEMS: Mapping[FileKind, Mapping[str, str]] = {
    FileKind.HUGGING_FACE: {
        "attn_norm": "input_layernorm",
        "attn.q": "self_attn.q_proj",
        "attn.k": "self_attn.k_proj",
        "attn.v": "self_attn.v_proj",
        "attn.o": "self_attn.o_proj",
        "attn.q_norm": "self_attn.q_norm",
        "attn.k_norm": "self_attn.k_norm",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
        "mlp.router": "mlp.gate",
        "mlp.experts.gate": "mlp.experts.{expert}.gate_proj",
        "mlp.experts.up": "mlp.experts.{expert}.up_proj",
        "mlp.experts.down": "mlp.experts.{expert}.down_proj",
    },
    FileKind.GGUF: {
        "attn_norm": "attn_norm",
        "attn.q": "attn_q",
        "attn.k": "attn_k",
        "attn.v": "attn_v",
        "attn.o": "attn_output",
        "attn.q_norm": "attn_q_norm",
        "attn.k_norm": "attn_k_norm",
        "mlp_norm": "ffn_norm",
        "mlp.gate": "ffn_gate",
        "mlp.up": "ffn_up",
        "mlp.down": "ffn_down",
        "mlp.router": "ffn_gate_inp",
        "mlp.experts.gate": "ffn_gate_exps",
        "mlp.experts.up": "ffn_up_exps",
        "mlp.experts.down": "ffn_down_exps",
    },
}

# Precomputed frequencies, which older files carry and nothing reads.
_IGNORED: Mapping[FileKind, re.Pattern[str]] = {
    FileKind.HUGGING_FACE: re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    FileKind.GGUF: re.compile(rf"{re.escape(GGUF_ROPE_FACTORS)}|blk\.\d+\.attn_rot_embd\.weight"),
}

_LAYER_TENSOR = re.compile(r"layers\.(\d+)\.(.+)")


def stored_tensor(weight: WeightSpec, file_kind: FileKind) -> StoredTensor:
    """Where a file keeps a weight; raises ``KeyError`` if its name is not canonical."""
    name = stored_name(weight.name, file_kind)
    if _EACH_EXPERT not in name:
        return StoredTensor(canonical_name=weight.name, stored_names=(name,))
    names = tuple(name.replace(_EACH_EXPERT, str(expert)) for expert in range(weight.shape[0]))
    return StoredTensor(canonical_name=weight.name, stored_names=names, is_stacked=True)


def stored_name(canonical_name: str, file_kind: FileKind) -> str:
    """What a file calls a canonical tensor; raises ``KeyError`` if ``canonical_name`` is none."""
    stem, _, part = canonical_name.rpartition(".")
    layer = _LAYER_TENSOR.fullmatch(stem)
    if layer is None:
        return f"{_STEMS[file_kind][stem]}.{part}"
    prefix = _LAYER_PREFIXES[file_kind]
    return f"{prefix}{layer[1]}.{_LAYER_STEMS[file_kind][layer[2]]}.{part}"


def is_ignored(stored: str, file_kind: FileKind) -> bool:
    """Whether a tensor of a file needs no reader."""
    return _IGNORED[file_kind].fullmatch(stored) is not None
