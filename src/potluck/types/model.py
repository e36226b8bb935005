"""What is known about a model before its weights are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from potluck.types.step import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """How a text becomes an embedding. ``is_normalized``: its Euclidean length is made 1."""

    pooling: Pooling
    is_normalized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankConfig:
    """How a query and a document become a score, by the labels of a classifier.

    ``template`` is a chat template for messages of the roles ``query`` and ``document`` (and
    ``system``, for an instruction), or None: it is the model's own. Of several labels the score is
    the share that ``positive_label`` has in their softmax, of one its logistic function.
    ``label_texts`` are the texts that ``label_tokens`` must have; empty: any.
    """

    pooling: Pooling
    positive_label: int = 0
    template: str | None = None
    label_texts: tuple[str, ...] = ()


class RopeScaling(enum.Enum):
    """How rope frequencies are stretched beyond the trained context."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Frequencies of the rotary embedding.

    ``factor`` applies to LINEAR and LLAMA3; the next three to LLAMA3 alone (Llama 3.1 model card
    and ``transformers``' ``modeling_rope_utils``). ``frequency_factors``, one for each pair of a
    head, divide the frequencies besides any scaling: GGUF files carry Llama 3's scaling in this
    form, as a tensor ``rope_freqs.weight``.
    """

    theta: float
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context_tokens: int = 0
    frequency_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """The mixture of experts that takes the place of the feed-forward part in some layers.

    ``width`` is that of one expert's gate and up. ``is_in_layer`` has one entry per layer; where it
    is False, the layer is dense. ``normalize_shares`` as in ``potluck.types.program.Moe``.
    """

    num_experts: int
    num_experts_per_token: int
    width: int
    normalize_shares: bool
    is_in_layer: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer, whatever file it came from.

    ``qkv_bias``, ``output_bias``, ``mlp_bias``, ``qk_norm`` and ``sliding_windows`` (one entry per
    layer: the window in tokens, or None for full attention) are the ways in which families differ,
    and so is ``experts``, None for a dense model. ``intermediate_size`` is that of dense layers.

    A model without ``has_logits`` has no head: it gives vectors only. With ``num_labels`` it is a
    classifier, a matrix of so many rows after the last norm, whose outputs are the vectors; they
    are the rows ``label_tokens`` of what would be the head, where the files have no such matrix.
    ``has_bare_names``: its Hugging Face files leave out the prefix ``model.`` of tensors' names.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_tokens: int
    rms_norm_epsilon: float
    rope: RopeConfig
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    experts: ExpertsConfig | None = None
    has_logits: bool = True
    num_labels: int = 0
    label_tokens: tuple[int, ...] = ()
    has_bare_names: bool = False

    @property
    def vector_size(self) -> int:
        """The numbers in a vector."""
        return self.num_labels or self.hidden_size
