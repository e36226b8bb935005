"""Canonical tensor names, and the corresponding names in the files of a family.

Each family has a ``NameTable`` for each kind of file. Hugging Face names are those of
``transformers``' modules, GGUF names those of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Llama's names are the default table,
which most families use with changes.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from potluck.types.model import LatentAttentionConfig, ModelConfig
from potluck.types.program import WeightSpec
from potluck.types.tensor import InterleavedHeads, RowRange, StoredTensor


class FileKind(enum.Enum):
    """The supported kinds of model files."""

    HUGGING_FACE = "hugging_face"
    GGUF = "gguf"


GGUF_ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that configures rope and that no op reads."""

EMBEDDING = "embed.weight"
FINAL_NORM = "norm.weight"
HEAD = "head.weight"
CLASSIFIER = "classifier.weight"

_USUAL_PREFIX = "model."
_EACH_EXPERT = "{expert}"
"""Placeholder in a name for the index of an expert that is a separate tensor."""
_LAYER_TENSOR = re.compile(r"layers\.(\d+)\.(.+)")
_HEADS = ("attn.q", "attn.k")


def layer_tensor(layer: int, name: str) -> str:
    """Return the canonical name of a tensor of one layer: ``layers.3.attn.q.weight``."""
    return f"layers.{layer}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """A canonical tensor that is part of a file's tensor, or stored in another form.

    ``after``: the file has one tensor for several canonical ones, whose rows are concatenated;
    those listed, named as parts of the same layer (``attn.q``), precede this one. The first of
    them, which has no predecessor, sets ``is_part``. ``first`` and ``stride``: it consists of every
    ``stride``-th row from ``first`` on. In a stack of matrices, both apply to each matrix.
    ``is_interleaved``: the two elements of a rope pair are adjacent in each head, instead of half
    the rotated width apart. ``plus_one``: the file stores ``w - 1`` for a norm's weight ``w``.
    ``is_negative_exp``: the file stores ``log(-w)``. ``rows_of`` returns the runs of rows of the
    file's tensor of which it consists, for a model and a layer index. ``is_transposed``: if stored
    as floats, the file has the transpose of each matrix. ``is_flat``: it is a vector of the
    elements of the file's tensor in order.

    ``is_per_head``: the rows of the file's matrix are grouped by head, and the rules for stacks
    apply to them. ``is_turned``: the canonical tensor has the transpose of each head's part.
    """

    name: str
    after: tuple[str, ...] = ()
    is_part: bool = False
    first: int = 0
    stride: int = 1
    is_interleaved: bool = False
    plus_one: bool = False
    is_negative_exp: bool = False
    rows_of: Callable[[ModelConfig, int], tuple[range, ...]] | None = None
    is_transposed: bool = False
    is_per_head: bool = False
    is_turned: bool = False
    is_flat: bool = False


def concatenated(name: str, *stems: str, ending: str = "") -> Mapping[str, StoredPart]:
    """Return the parts of a file's tensor ``name``, which has the rows of ``stems`` in this order.

    If ``name`` is a complete name, ``ending``, such as ``.weight``, completes the canonical names.
    """
    return {
        stem + ending: StoredPart(name=name, is_part=index == 0, after=stems[:index])
        for index, stem in enumerate(stems)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTable:
    """Maps canonical names to the names of a family's tensors in one kind of file.

    The keys of ``stems`` and ``layer_stems`` are canonical names without their last part, which is
    ``weight`` or ``bias`` and the same in the file (``attn.q`` for ``layers.3.attn.q.bias``), or
    the complete name, for a tensor with a different last part in the file (``attn.sinks.weight``).
    ``layer_prefix`` is followed by the layer's number and a dot. ``ignored`` are tensors that are
    not needed; ``skipped`` maps descriptions of skipped parts of a model to their tensors.
    ``has_more_layers``: files have multi-token prediction layers after the last one, which are
    skipped as well. ``variants`` maps names to alternative layer stems that some files use in place
    of those in ``layer_stems``.
    """

    stems: Mapping[str, str | StoredPart]
    layer_prefix: str
    layer_stems: Mapping[str, str | StoredPart]
    ignored: re.Pattern[str]
    skipped: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    has_more_layers: bool = False
    variants: Mapping[str, Mapping[str, str | StoredPart]] = field(default_factory=dict)

    def changed(
        self,
        layer_stems: Mapping[str, str | StoredPart],
        *,
        stems: Mapping[str, str | StoredPart] | None = None,
        skipped: Mapping[str, re.Pattern[str]] | None = None,
        ignored: Iterable[str] = (),
        has_more_layers: bool = False,
        variants: Mapping[str, Mapping[str, str | StoredPart]] | None = None,
    ) -> NameTable:
        """Return the table with additional stems, or others for the same canonical names.

        ``ignored`` are names of additional tensors that are not needed.
        """
        patterns = (self.ignored.pattern, *map(re.escape, ignored))
        return dataclasses.replace(
            self,
            ignored=re.compile("|".join(patterns)),
            stems={**self.stems, **(stems or {})},
            layer_stems={**self.layer_stems, **layer_stems},
            skipped={**self.skipped, **(skipped or {})},
            has_more_layers=self.has_more_layers or has_more_layers,
            variants={**self.variants, **(variants or {})},
        )

    def found_variants(self, config: ModelConfig, stored: Container[str]) -> tuple[str, ...]:
        """Return the names of the variants of which ``stored`` has a tensor in any layer."""

        def is_there(variant: str, stems: Iterable[str]) -> bool:
            return any(
                with_prefix(config, self.find(layer_tensor(layer, stem), (variant,)).name) in stored
                for layer in range(config.num_layers)
                for stem in stems
            )

        return tuple(
            variant for variant, stems in self.variants.items() if is_there(variant, stems)
        )

    def skipped_by(self, config: ModelConfig) -> Mapping[str, Callable[[str], object]]:
        """Return each skipped part of a model, and a predicate for the names of its tensors."""
        parts: dict[str, Callable[[str], object]] = {
            what: pattern.match for what, pattern in self.skipped.items()
        }
        if self.has_more_layers:
            layer = re.compile(rf"{re.escape(with_prefix(config, self.layer_prefix))}(\d+)\.")

            def is_beyond(name: str) -> bool:
                found = layer.match(name)
                return found is not None and int(found[1]) >= config.num_layers

            parts["multi-token prediction layers"] = is_beyond
        return parts

    def find(self, canonical_name: str, variants: Iterable[str] = ()) -> StoredPart:
        """Return where a file with these ``variants`` has a canonical tensor.

        Raises ``KeyError`` if ``canonical_name`` is not one.
        """
        layer = _LAYER_TENSOR.fullmatch(canonical_name)
        prefix = "" if layer is None else f"{self.layer_prefix}{layer[1]}."
        stems = dict(self.stems if layer is None else self.layer_stems)
        if layer is not None:
            for variant in variants:
                stems.update(self.variants[variant])
        name = canonical_name if layer is None else layer[2]
        stem, _, suffix = name.rpartition(".")
        ending = ""
        found = stems.get(name)
        if found is None:
            found, ending = stems[stem], f".{suffix}"
        if isinstance(found, str):
            found = StoredPart(name=found)
        return dataclasses.replace(found, name=f"{prefix}{found.name}{ending}")


HUGGING_FACE_NAMES = NameTable(
    stems={
        "embed": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
        "classifier": "score",
    },
    layer_prefix="model.layers.",
    layer_stems={
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
    # Precomputed frequencies in older files, which nothing reads.
    ignored=re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)

GGUF_NAMES = NameTable(
    stems={
        "embed": "token_embd",
        "norm": "output_norm",
        "head": "output",
        "classifier": "cls.output",
    },
    layer_prefix="blk.",
    layer_stems={
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
        "mlp.correction.weight": "exp_probs_b.bias",
        "mlp.shared.gate": "ffn_gate_shexp",
        "mlp.shared.up": "ffn_up_shexp",
        "mlp.shared.down": "ffn_down_shexp",
        "mlp.shared_gate": "ffn_gate_inp_shexp",
    },
    ignored=re.compile(rf"{re.escape(GGUF_ROPE_FACTORS)}|blk\.\d+\.attn_rot_embd\.weight"),
    # As written by ``--fuse-gate-up-exps`` of llama.cpp's converter.
    variants={
        "fused experts": concatenated(
            "ffn_gate_up_exps.weight", "mlp.experts.gate", "mlp.experts.up", ending=".weight"
        )
    },
)

USUAL_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES,
    FileKind.GGUF: GGUF_NAMES,
}

SHARED_EXPERTS: Mapping[str, str] = {
    "mlp.shared.gate": "mlp.shared_experts.gate_proj",
    "mlp.shared.up": "mlp.shared_experts.up_proj",
    "mlp.shared.down": "mlp.shared_experts.down_proj",
}
"""Stems of the shared experts in many Hugging Face files."""

FUSED_GATE_UP: Mapping[FileKind, Mapping[str, StoredPart]] = {
    FileKind.HUGGING_FACE: concatenated("mlp.gate_up_proj", "mlp.gate", "mlp.up"),
    FileKind.GGUF: concatenated("ffn_up", "mlp.gate", "mlp.up"),
}
"""Stems of families with one matrix for gate and up, in which the rows of the gate come first."""

INTERLEAVED_PROJECTIONS: Mapping[str, StoredPart] = {
    "attn.q": StoredPart(name="self_attn.q_proj", is_interleaved=True),
    "attn.k": StoredPart(name="self_attn.k_proj", is_interleaved=True),
}
"""Stems of Hugging Face files of models with interleaved rope pairs."""

INTERLEAVED_HEADS: Mapping[str, StoredPart] = {
    "attn.q": StoredPart(name="attn_q", is_interleaved=True),
    "attn.k": StoredPart(name="attn_k", is_interleaved=True),
}
"""Stems of GGUF files that interleave the halves of the heads of q and k."""

INTERLEAVED_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(INTERLEAVED_PROJECTIONS),
    FileKind.GGUF: GGUF_NAMES.changed(INTERLEAVED_HEADS),
}
"""The usual names of families with interleaved rope pairs."""

CONVERTED_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.GGUF: INTERLEAVED_NAMES[FileKind.GGUF],
}
"""The GGUF names of families whose heads are interleaved only in GGUF files, like Llama's."""


def stored_tensor(
    config: ModelConfig, table: NameTable, weight: WeightSpec, weights: Mapping[str, WeightSpec]
) -> StoredTensor:
    """Return where a file stores a weight; raise ``KeyError`` if its name is not canonical.

    ``weights`` maps names to the weights of the same layers.
    """
    part = table.find(weight.name, config.name_variants)
    name = with_prefix(config, part.name)
    names: tuple[str, ...] = (name,)
    is_stacked = _EACH_EXPERT in name
    if is_stacked:
        names = tuple(name.replace(_EACH_EXPERT, str(each)) for each in range(weight.shape[0]))
    return StoredTensor(
        canonical_name=weight.name,
        stored_names=names,
        is_stacked=is_stacked,
        interleaved=_interleaved(config, weight) if part.is_interleaved else None,
        num_matrices=weight.shape[0] if part.is_per_head else None,
        row_range=_row_range(config, table, part, weight, weights),
        rows=None if part.rows_of is None else part.rows_of(config, _layer_and_stem(weight)[0]),
        plus_one=part.plus_one,
        is_negative_exp=part.is_negative_exp,
        is_transposed=part.is_transposed,
        is_part_transposed=part.is_turned,
        is_flat=part.is_flat,
        shape=weight.shape,
    )


def with_prefix(config: ModelConfig, name: str) -> str:
    """Return a name of the default table with the prefixes of the files of ``config``."""
    if name.startswith(_USUAL_PREFIX):
        return config.prefix + name.removeprefix(_USUAL_PREFIX)
    return f"{config.head_prefix}{name}" if name.startswith("lm_head") else name


def _layer_and_stem(weight: WeightSpec) -> tuple[int, str]:
    """Return the layer that has a tensor, and the tensor's name in it without its last part."""
    layer = _LAYER_TENSOR.fullmatch(weight.name)
    if layer is None:
        raise ValueError(f"{weight.name} is read from a tensor of a layer but belongs to none")
    return int(layer[1]), layer[2].rpartition(".")[0]


def _row_range(
    config: ModelConfig,
    table: NameTable,
    part: StoredPart,
    weight: WeightSpec,
    weights: Mapping[str, WeightSpec],
) -> RowRange | None:
    if not part.is_part and not part.after and part.stride == 1:
        return None
    layer, _ = _layer_and_stem(weight)
    suffix = weight.name.rpartition(".")[2]

    def num_rows(each: WeightSpec) -> int:
        """Return the number of rows of each matrix in the file, or of elements of each vector."""
        is_turned = table.find(each.name, config.name_variants).is_turned
        return each.shape[-1 if is_turned or _is_bias(each) else -2]

    before = (weights[layer_tensor(layer, f"{each}.{suffix}")] for each in part.after)
    return RowRange(
        start=part.first + sum(map(num_rows, before)),
        num_rows=num_rows(weight),
        stride=part.stride,
        of_vectors=_is_bias(weight),
    )


def _is_bias(weight: WeightSpec) -> bool:
    return weight.name.endswith(".bias")


def _interleaved(config: ModelConfig, weight: WeightSpec) -> InterleavedHeads | None:
    layer, stem = _layer_and_stem(weight)
    attention = config.layers[layer].attention
    if isinstance(attention, LatentAttentionConfig):
        return _interleaved_latent(stem, attention)
    if attention is None or stem not in _HEADS:
        raise ValueError(f"{weight.name} has no heads that RoPE rotates")
    if attention.rope is None:
        return None
    num_heads = attention.num_heads if stem == "attn.q" else attention.num_kv_heads
    return InterleavedHeads(
        num_heads=num_heads,
        head_dim=attention.head_dim,
        rotary_dim=config.ropes[attention.rope].rotary_dim,
    )


def _interleaved_latent(stem: str, attention: LatentAttentionConfig) -> InterleavedHeads | None:
    """Return the heads whose last columns rotate: those of queries, and that of the latent row."""
    if not attention.is_interleaved:
        return None
    num_heads, before = {
        "attn.q": (attention.num_heads, attention.nope_dim),
        "attn.k_rope": (1, attention.latent_rank),
    }[stem]
    return InterleavedHeads(
        num_heads=num_heads,
        head_dim=before + attention.rope_dim,
        rotary_dim=attention.rope_dim,
        start=before,
    )
