"""What is known about a model before its weights are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from potluck.types.program import Activation, ExpertScore
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
    """How rope frequencies are stretched beyond the trained context.

    ``potluck.models.rope`` says what each means. PROPORTIONAL is Gemma 4's: only the first pairs of
    a head turn, at the frequencies that they would have if all did.
    """

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One table of rotations. ``rotary_dim`` columns of every head turn, the others stay.

    ``factor`` applies to every scaling but PROPORTIONAL; ``low_freq_factor`` and
    ``high_freq_factor`` to LLAMA3, ``beta_fast``, ``beta_slow`` and ``truncate`` to YARN (Peng et
    al. 2023), ``original_context_tokens`` to all three that know a trained length;
    ``long_factors`` and ``short_factors``, one for each pair, to LONGROPE (Ding et al. 2024);
    ``num_turning_pairs`` to PROPORTIONAL. ``frequency_factors``, one for each pair, divide the
    frequencies besides any scaling: GGUF files carry Llama 3's scaling in this form, as a tensor
    ``rope_freqs.weight``.

    Cosines and sines are multiplied by ``attention_factor``, and by ``1 + position_beta * log(1 +
    floor(position / original_context_tokens))``, the query scale of Llama 4 and Ministral 3, which
    is 1 where ``position_beta`` is 0.
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
    """Where the norms of a layer are.

    PRE: before attention and before the feed-forward part (Llama). POST: after each, before it is
    added to the residual stream (OLMo 2). SANDWICH: both (Gemma). PARALLEL: one norm before both,
    which read the same input and are added together (Cohere).
    """

    PRE = "pre"
    POST = "post"
    SANDWICH = "sandwich"
    PARALLEL = "parallel"


class HeadNorm(enum.Enum):
    """The RMS norms of queries and keys: none, one weight for every head, or over all heads."""

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """The attention of one layer.

    ``rope`` is the index of its table in ``ModelConfig.ropes``, None for no rotation;
    ``query_rope`` another one for queries, None for the same. ``norms_after_rope``: queries and
    keys are turned before their norms. ``has_value_norm``: values pass an RMS norm without a
    weight. ``values_are_keys``: there is no matrix for values, which are the keys before their norm
    and rotation. ``shared_layer`` is the layer whose keys and values this one reads; it has no
    matrices for its own. ``has_output_gate``: each head's rows of the matrix for queries are
    followed by as many for a gate, by whose sigmoid the head's output is multiplied (Qwen3-Next).
    Keys are multiplied by ``key_scale`` before they are turned, and what attention gives by
    ``output_scale`` (Falcon-H1).
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

    Keys and values of all heads are made of one latent row of ``latent_rank`` columns, which is
    what the cache has, beside ``rope_dim`` columns that are rotated by the table ``rope``. Queries
    have ``nope_dim`` columns for the former and ``rope_dim`` for the latter; they pass through
    ``query_rank`` columns, unless that is None. ``has_bias``: the projections down have biases, and
    that of the output. ``norm_epsilon`` is that of the norms of what they give; None for the
    model's.

    Files have the pairs that rope turns side by side if it ``is_interleaved``.
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
    """What the parts of a Mamba-2 mixer's input projection are multiplied by (Falcon-H1)."""

    gate: float
    x: float
    b: float
    c: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """A Mamba-2 mixer: a convolution over ``kernel`` tokens, the scan, and a gated norm.

    The fields from ``num_heads`` to ``largest_step`` are those of
    ``potluck.types.program.StateScan``. The norm goes by ``norm_groups`` groups of columns; None
    for no norm, only the gate. With ``norm_before_gate`` the norm comes first. ``has_bias``: the
    projection of the input has a bias, and so has that of the output, unless ``has_output_bias``
    says otherwise. With ``scales`` the matrices of ``x``, ``b`` and ``c`` are three. What the mixer
    gives is multiplied by ``output_scale``.
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
    """A feed-forward layer; ``width`` is that of up, and of the gate if the activation has one.

    The gate is multiplied by ``gate_scale`` before the activation, and what the layer gives by
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

    ``width`` is that of one expert's gate and up. The fields from ``normalize_shares`` to
    ``share_scale`` are those of ``potluck.types.program.Moe``, as are the tensors that
    ``has_correction``, ``has_expert_scale`` and ``has_bias`` say there are. ``has_bias`` is also
    that of the router. ``shared`` is an MLP for all tokens beside the experts, multiplied by the
    sigmoid of a scalar of its own with ``has_shared_gate``. With ``latent_width`` experts read and
    give so many columns, which one matrix makes of the input and another turns into the output
    (Nemotron 3 Super); the router and ``shared`` read the input itself.
    """

    num_experts: int
    num_experts_per_token: int
    width: int
    normalize_shares: bool
    activation: Activation = Activation.SILU
    score: ExpertScore = ExpertScore.SOFTMAX
    num_groups: int = 1
    num_groups_used: int = 1
    share_scale: float = 1.0
    has_correction: bool = False
    has_expert_scale: bool = False
    has_bias: bool = False
    shared: MlpConfig | None = None
    has_shared_gate: bool = False
    latent_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """One decoder layer: attention, a recurrence or both, then an MLP, experts or both.

    Attention and a recurrence read the same normed input and are added (Falcon-H1). A layer may
    lack either half (Nemotron-H).

    With an MLP and experts, as in Gemma 4's 26B-A4B, they run beside one another: each has its own
    norms before and after it, and the router reads the residual stream through a norm of its own.
    What attention and the feed-forward part give is multiplied by ``residual_scale`` before it is
    added. ``has_output_scale``: the layer's output is multiplied by a stored scalar (Gemma 4).
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
        """The attention of a layer that has keys and values for heads; ``ValueError`` of others."""
        if not isinstance(self.attention, AttentionConfig):
            raise ValueError("the layer has no attention with keys and values")
        return self.attention

    @property
    def shared_layer(self) -> int | None:
        """The layer whose keys and values this one reads instead of its own, if it does."""
        attention = self.attention
        return attention.shared_layer if isinstance(attention, AttentionConfig) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputs:
    """Gemma 4 E2B's second embedding: ``width`` columns of it enter every layer at its end.

    ``activation`` is that of the gate. Every layer needs what is made of the token's embedding
    before the first layer, so such a model is not cut.
    """

    width: int
    activation: Activation = Activation.GELU_TANH


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer, whatever file it came from: ``layers`` says how each is made.

    Embeddings are multiplied by ``embedding_scale``; logits by ``logit_scale``, and then capped by
    ``logit_softcap`` (see ``potluck.types.program.Head``).

    A model without ``has_logits`` has no head: it gives vectors only. With ``num_labels`` it is a
    classifier, a matrix of so many rows after the last norm, whose outputs are the vectors; they
    are the rows ``label_tokens`` of what would be the head, where the files have no such matrix.
    ``prefix`` is what the names of a Hugging Face file's tensors begin with, and ``head_prefix``
    that of its head (``language_model.`` in some models that also see). ``name_variants`` are those
    of its table of names that the files have (``potluck.models.names.NameTable``).
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
        """The numbers in a vector."""
        return self.num_labels or self.hidden_size

    def can_cut_before(self, layer: int) -> bool:
        """Whether one stage may end and the next begin there.

        A layer that reads the keys and values of another one must be on the same stage as that
        one. Of a model with ``per_layer_inputs`` only the head can be a stage of its own.
        """
        if not 0 < layer < self.num_layers:
            return self.per_layer_inputs is None or layer == self.num_layers
        return self.per_layer_inputs is None and all(
            each.shared_layer is None or each.shared_layer >= layer for each in self.layers[layer:]
        )
