"""The configuration of a model, known before its weights are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from potluck.types.program import Activation, ExpertScore
from potluck.types.step import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """How the embedding of a text is computed.

    ``is_normalized`` scales it to Euclidean length 1.
    """

    pooling: Pooling
    is_normalized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankConfig:
    """How a query and a document are scored, by the labels of a classifier.

    ``template`` is a chat template for messages of the roles ``query`` and ``document`` (and
    ``system``, for an instruction); None means the model's own. With several labels the score is
    the softmax probability of ``positive_label``; with one label it is its logistic function.
    ``label_texts`` are the texts that ``label_tokens`` must have; empty allows any.
    """

    pooling: Pooling
    positive_label: int = 0
    template: str | None = None
    label_texts: tuple[str, ...] = ()


class RopeScaling(enum.Enum):
    """How rope frequencies are scaled beyond the trained context.

    ``potluck.models.rope`` defines each method. PROPORTIONAL is Gemma 4's: only the first pairs of
    a head are rotated, at the frequencies that they would have if all pairs were.
    """

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One table of rotations, which applies to ``rotary_dim`` columns of every head.

    ``factor`` applies to every scaling except PROPORTIONAL; ``low_freq_factor`` and
    ``high_freq_factor`` to LLAMA3; ``beta_fast``, ``beta_slow`` and ``truncate`` to YARN (Peng et
    al. 2023); ``original_context_tokens`` to all three methods that use the trained length;
    ``long_factors`` and ``short_factors``, one per pair, to LONGROPE (Ding et al. 2024); and
    ``num_turning_pairs`` to PROPORTIONAL. ``frequency_factors``, one per pair, divide the
    frequencies in addition to any scaling: GGUF files contain Llama 3's scaling in this form, as a
    tensor ``rope_freqs.weight``.

    Cosines and sines are multiplied by ``attention_factor``, and by ``1 + position_beta * log(1 +
    floor(position / original_context_tokens))``, the query scale of Llama 4 and Ministral 3, which
    is 1 if ``position_beta`` is 0.
    """

    theta: float
    rotary_dim: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context_tokens: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    long_factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    num_turning_pairs: int = 0
    frequency_factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0
    position_beta: float = 0.0


class NormKind(enum.Enum):
    """The norm of the residual stream: see the ops ``RmsNorm`` and ``LayerNorm``."""

    RMS = "rms"
    LAYER = "layer"


class NormPlaces(enum.Enum):
    """The positions of a layer's norms.

    PRE: before attention and before the feed-forward part (Llama). POST: after each, before it is
    added to the residual stream (OLMo 2). SANDWICH: both (Gemma). PARALLEL: one norm before both
    parts, which read the same input and are added together (Cohere).
    """

    PRE = "pre"
    POST = "post"
    SANDWICH = "sandwich"
    PARALLEL = "parallel"


class HeadNorm(enum.Enum):
    """The RMS norms of queries and keys: none, per head with one weight, or over all heads."""

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """The attention of one layer.

    ``rope`` is the index of its table in ``ModelConfig.ropes``, None for no rotation;
    ``query_rope`` is a separate table for queries, None for the same one. With
    ``norms_after_rope``, queries and keys are rotated before their norms. With ``has_value_norm``,
    values pass through an RMS norm without a weight. With ``values_are_keys`` there is no value
    matrix; values are the keys before their norm and rotation. ``shared_layer`` is the layer whose
    keys and values this one reads instead of computing its own. With ``has_output_gate``, each
    head's rows of the query matrix are followed by as many rows for a gate, and the head's output
    is multiplied by the sigmoid of the gate (Qwen3-Next). Keys are multiplied by ``key_scale``
    before rotation, and the attention output by ``output_scale`` (Falcon-H1).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: int | None = 0
    query_rope: int | None = None
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: HeadNorm = HeadNorm.NONE
    norms_after_rope: bool = False
    has_value_norm: bool = False
    values_are_keys: bool = False
    shared_layer: int | None = None
    has_output_gate: bool = False
    key_scale: float = 1.0
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionConfig:
    """Multi-head latent attention (DeepSeek V2), computed with absorbed matrices.

    The keys and values of all heads are computed from one latent row of ``latent_rank`` columns.
    The cache holds this row and ``rope_dim`` columns that are rotated by the table ``rope``.
    Queries have ``nope_dim`` columns for the former and ``rope_dim`` for the latter; they pass
    through ``query_rank`` columns, unless that is None. With ``has_bias``, the down projections and
    the output projection have biases. ``norm_epsilon`` is the epsilon of the norms after the down
    projections; None means the model's.

    If ``is_interleaved``, files store the pairs that rope rotates next to each other.
    """

    num_heads: int
    query_rank: int | None
    latent_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    scale: float
    rope: int = 0
    has_bias: bool = False
    norm_epsilon: float | None = None
    is_interleaved: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A gated short convolution over ``kernel`` tokens (LFM2)."""

    kernel: int
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig:
    """A gated delta net (Qwen3-Next): a convolution over ``kernel`` tokens, the gated delta rule,
    and a gated norm. The fields are those of ``potluck.types.program.GatedDelta``.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    epsilon: float = 1e-6
    is_tiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaScales:
    """The factors of the parts of a Mamba-2 mixer's input projection (Falcon-H1)."""

    gate: float
    x: float
    b: float
    c: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """A Mamba-2 mixer: a convolution over ``kernel`` tokens, the scan, and a gated norm.

    The fields from ``num_heads`` to ``largest_step`` are those of
    ``potluck.types.program.StateScan``. The norm is over ``norm_groups`` groups of columns; None
    means no norm, only the gate. With ``norm_before_gate`` the norm comes first. With ``has_bias``,
    the input projection has a bias, and the output projection too unless ``has_output_bias`` says
    otherwise. With ``scales``, ``x``, ``b`` and ``c`` have separate matrices. The output of the
    mixer is multiplied by ``output_scale``.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    kernel: int
    least_step: float = 0.0
    largest_step: float | None = None
    norm_groups: int | None = 1
    norm_before_gate: bool = False
    has_conv_bias: bool = True
    has_bias: bool = False
    has_output_bias: bool | None = None
    scales: MambaScales | None = None
    output_scale: float = 1.0


Recurrence = ShortConvConfig | GatedDeltaConfig | MambaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """A feed-forward layer; ``width`` is the width of up, and of the gate if there is one.

    The gate is multiplied by ``gate_scale`` before the activation, and the layer's output by
    ``output_scale`` (Falcon-H1).
    """

    width: int
    activation: Activation = Activation.SILU
    has_bias: bool = False
    gate_scale: float = 1.0
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts.

    ``width`` is the width of one expert's gate and up. The fields from ``norm_topk_prob`` to
    ``share_scale`` are those of ``potluck.types.program.Moe``, and ``has_score_correction_bias``,
    ``has_expert_scale`` and ``has_bias`` say which of its optional tensors exist. ``has_bias`` also
    applies to the router. ``shared`` is an MLP that processes all tokens in addition to the
    experts; with ``has_shared_gate`` it is multiplied by the sigmoid of its own scalar gate. With
    ``latent_width``, experts have this many input and output columns; one matrix projects the input
    to them, and another projects them to the output (Nemotron 3 Super). The router and ``shared``
    read the unprojected input.
    """

    num_experts: int
    num_experts_per_token: int
    width: int
    norm_topk_prob: bool
    activation: Activation = Activation.SILU
    score: ExpertScore = ExpertScore.SOFTMAX
    num_groups: int = 1
    num_groups_used: int = 1
    share_scale: float = 1.0
    has_score_correction_bias: bool = False
    has_expert_scale: bool = False
    has_bias: bool = False
    shared: MlpConfig | None = None
    has_shared_gate: bool = False
    latent_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """One decoder layer: attention, a recurrence or both, then an MLP, experts or both.

    Attention and a recurrence read the same normalized input and are added (Falcon-H1). A layer may
    lack either half (Nemotron-H).

    If a layer has both an MLP and experts, as in Gemma 4's 26B-A4B, they run in parallel: each has
    its own norms before and after it, and the router reads the residual stream through its own
    norm. The outputs of attention and of the feed-forward part are multiplied by ``residual_scale``
    before they are added. With ``has_output_scale``, the layer's output is multiplied by a stored
    scalar (Gemma 4).
    """

    attention: AttentionConfig | LatentAttentionConfig | None
    mlp: MlpConfig | None = None
    experts: ExpertsConfig | None = None
    norms: NormPlaces = NormPlaces.PRE
    residual_scale: float = 1.0
    has_output_scale: bool = False
    recurrence: Recurrence | None = None

    @property
    def mixes_tokens(self) -> bool:
        """Whether there is attention or a recurrence."""
        return self.attention is not None or self.recurrence is not None

    @property
    def grouped_attention(self) -> AttentionConfig:
        """The attention, if it has keys and values per head. Raises ``ValueError`` otherwise."""
        if not isinstance(self.attention, AttentionConfig):
            raise ValueError("the layer has no attention with separate keys and values")
        return self.attention

    @property
    def shared_layer(self) -> int | None:
        """The layer whose keys and values this one reads instead of its own, or None."""
        attention = self.attention
        return attention.shared_layer if isinstance(attention, AttentionConfig) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputs:
    """Gemma 4 E2B's second embedding: ``width`` columns of it are added at the end of every layer.

    ``activation`` is the activation of the gate. Every layer needs values that are computed from
    the token's embedding before the first layer, so such a model cannot be cut.
    """

    width: int
    activation: Activation = Activation.GELU_TANH


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer, independent of its file format, with one entry of ``layers`` per
    decoder layer.

    Embeddings are multiplied by ``embedding_scale``, and logits by ``logit_scale`` before
    ``logit_softcap`` is applied (see ``potluck.types.program.Head``).

    A model without ``has_logits`` has no head and only computes vectors. With ``num_labels`` it is
    a classifier: the last norm is followed by a matrix with one row per label, whose outputs are
    the vectors. If the files have no such matrix, its rows are the rows ``label_tokens`` of the
    head's matrix. ``prefix`` is the prefix of tensor names in a Hugging Face file, and
    ``head_prefix`` that of the head (``language_model.`` in some multimodal models).
    ``name_variants`` are the variants of the table of names that the files use
    (``potluck.models.names.NameTable``).
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    norm_epsilon: float
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...]
    tied_head: bool
    norm: NormKind = NormKind.RMS
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    per_layer_inputs: PerLayerInputs | None = None
    has_logits: bool = True
    num_labels: int = 0
    label_tokens: tuple[int, ...] = ()
    prefix: str = "model."
    head_prefix: str = ""
    name_variants: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        """The number of decoder layers."""
        return len(self.layers)

    @property
    def vector_size(self) -> int:
        """The number of elements of a vector."""
        return self.num_labels or self.hidden_size

    @property
    def no_cuts(self) -> frozenset[int]:
        """The layers before which no stage may begin; see ``can_cut_before``."""
        layers = range(self.num_layers + 1)
        return frozenset(layer for layer in layers if not self.can_cut_before(layer))

    def can_cut_before(self, layer: int) -> bool:
        """Return whether one stage may end and the next begin before ``layer``.

        A layer that reads the keys and values of another must be on the same stage as that layer.
        In a model with ``per_layer_inputs``, only the head can be a separate stage.
        """
        if not 0 < layer < self.num_layers:
            return self.per_layer_inputs is None or layer == self.num_layers
        return self.per_layer_inputs is None and all(
            each.shared_layer is None or each.shared_layer >= layer for each in self.layers[layer:]
        )
