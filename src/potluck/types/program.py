"""Programs, which engines run.

A program is a list of ops over named *registers*. A register is a float32 matrix with one row per
token of the step and a fixed width; weights are named tensors (canonical names, see
``potluck.models``). ``tests/support/reference/engine.py`` defines the meaning of every op.

A program covers one shard. If it has the embedding, it begins with ``Embed``; otherwise the
register ``hidden`` is the stage's input. If it has the head, it ends with ``Head``; otherwise
the register ``hidden`` is the stage's output.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from potluck.types.groups import GroupPart

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HIDDEN = "hidden"
"""The register that is passed from stage to stage: the residual stream in float32."""


class Activation(enum.Enum):
    """The element-wise activation of ``gate`` and ``up`` in a feed-forward layer.

    SILU: ``gate / (1 + exp(-gate)) * up`` (Shazeer 2020, SwiGLU). GELU_TANH: ``0.5 gate (1 +
    tanh(sqrt(2/pi) (gate + 0.044715 gate^3))) * up`` (Hendrycks and Gimpel 2016). CLAMPED_SWIGLU is
    gpt-oss's: ``g = min(gate, 7)``, ``u = clip(up, -7, 7)``, ``g / (1 + exp(-1.702 g)) * (u +
    1)``. PRODUCT: ``gate * up`` (the gates of LFM2's convolutions). RELU_SQUARED has no gate:
    ``max(up, 0)²`` (So et al. 2021; Nemotron-H).
    """

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    CLAMPED_SWIGLU = "clamped_swiglu"
    PRODUCT = "product"
    RELU_SQUARED = "relu_squared"

    @property
    def has_gate(self) -> bool:
        """Whether it takes a gate."""
        return self is not Activation.RELU_SQUARED


class ExpertScore(enum.Enum):
    """How a router's logits become scores: by softmax over all experts, or individually."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A float32 matrix ``[num_tokens, width]``."""

    name: str
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """``out[t] = weight[token[t]]``; weight is ``[vocab, width(out)]``.

    A program may have several, all on the stage with the embedding. In a group, member ``m`` only
    has the rows of the tokens ``[bounds[m], bounds[m + 1])``, and ``out`` of each token comes from
    the member that has its row.
    """

    weight: str
    out: str
    bounds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """``out = x / sqrt(mean(x²) + epsilon) * weight`` over groups of ``group`` columns.

    For the norms of the residual stream ``group`` is the width and weight is ``[width]``; for
    per-head norms (Qwen 3) it is the head size, and the weight ``[head_dim]`` is used for every
    head. Without a weight the factors are 1 (Gemma 4's values). ``out`` may be ``x``.
    """

    x: str
    weight: str | None
    out: str
    group: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """``out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight`` over the whole width (Ba et
    al. 2016, without a bias: Cohere Command R). ``out`` may be ``x``.
    """

    x: str
    weight: str
    out: str
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """``out[t] = weight @ x[t] + bias``; weight is ``[width(out), width(x)]``, bias may be None."""

    x: str
    weight: str
    out: str
    bias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather:
    """``out`` is the concatenation of the columns of ``x`` of all members of the group, in order.

    ``widths[m]`` is the width of ``x`` in the program of member ``m``: a multiple of 16, and of 32
    if products read ``out`` and there are enough columns for all members. If all ops that read
    ``out`` read it in a form other than float32 (see ``potluck.engines.native.products``), members
    exchange that form, which gives bit-identical results.
    """

    x: str
    out: str
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLinear:
    """A product of each head with its own matrix; weight is ``[num_heads, rows, columns]``.

    ``out[t][out_start + h * out_stride + i] = (weight[h] @ x_h)[i]``, where ``x_h`` are the
    ``columns`` elements of ``x[t]`` from ``x_start + h * x_stride`` on. The other columns of
    ``out`` are unchanged. ``out`` must not be ``x``.
    """

    x: str
    weight: str
    out: str
    num_heads: int
    rows: int
    columns: int
    x_stride: int
    out_stride: int
    x_start: int = 0
    out_start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyColumns:
    """Copy columns of ``x`` to ``out``: ``count`` columns of each of ``num_groups`` groups.

    ``out[t][out_start + g * out_stride + i] = x[t][x_start + g * x_stride + i]``. The other columns
    of ``out`` are unchanged. ``out`` must not be ``x``.
    """

    x: str
    out: str
    num_groups: int
    count: int
    x_stride: int
    out_stride: int
    x_start: int = 0
    out_start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotate pairs ``(i, i + rotary_dim/2)`` of every head of ``x`` in place by one of the
    program's rope tables at each token's position (the "neox" or rotate-half form, Su et al. 2021).

    ``table`` is the index of the table; ``rotary_dim`` is twice the width of its cosines. Columns
    of a head beyond ``rotary_dim`` are unchanged.
    """

    x: str
    num_heads: int
    head_dim: int
    rotary_dim: int
    table: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal grouped-query attention over the paged cache.

    Appends this step's ``k`` and ``v`` rows to the cache of ``cache_index`` (counted from 0 within
    the program), then ``out[t] = softmax(scale * q·K) V`` over the sequence's positions up to and
    including the token's own; with ``window`` only the last ``window`` of them (Mistral: a token
    sees itself and the ``window - 1`` before it).

    Without ``k`` and ``v`` nothing is appended: the op reads a cache that an earlier op of the
    program has filled (Gemma 4 E2B). With ``softcap`` scores become ``softcap * tanh(score /
    softcap)`` before the softmax (Gemma 2). ``sinks`` ``[num_heads]`` are logits that are included
    in the softmax of their head but have no value (gpt-oss).

    ``value_dim`` is the width of values and of the heads of ``out``; None means the width of keys.
    With ``value_start`` there is no ``v``: the value of a position consists of its key's columns
    ``[value_start, value_start + value_dim)`` as stored in the cache. This is multi-head latent
    attention with absorbed matrices (DeepSeek V2), in which all heads share one key with a rotated
    and a latent part.
    """

    q: str
    k: str | None
    v: str | None
    out: str
    cache_index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: str | None = None
    value_dim: int | None = None
    value_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConv:
    """A short depthwise convolution over the last rows of ``x`` of the sequence.

    ``out[t][c] = sum over j < k of weight[c][j] * x[t - k + 1 + j][c] + bias[c]``, in ascending
    order of ``j``, followed by ``y / (1 + exp(-y))`` if ``has_silu``. Weight is a vector
    ``[width(x) * k]``, with the factors of a column next to each other; bias is ``[width(x)]`` or
    None. The state ``state_index`` has the ``k - 1`` rows of ``x`` before the next token,
    ``[k - 1, width(x)]``, oldest first. ``k`` is ``kernel``. ``out`` may be ``x``.
    """

    x: str
    weight: str
    out: str
    state_index: int
    kernel: int
    bias: str | None = None
    has_silu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), token by token.

    ``x`` has the queries and the keys of ``num_key_heads`` heads, ``key_dim`` wide, and then the
    values of ``num_heads`` heads, ``value_dim`` wide; ``decay`` and ``beta`` are ``num_heads``
    wide. Head ``h`` uses the queries and keys of key head ``h // (num_heads / num_key_heads)``, or
    with ``is_tiled`` of ``h % num_key_heads``. With ``rate`` and ``decay_bias`` ``[num_heads]``::

        q = query / sqrt(sum(query²) + epsilon) / sqrt(key_dim)
        k = key / sqrt(sum(key²) + epsilon)
        S = S * exp(rate[h] * softplus(decay[t][h] + decay_bias[h]))
        S = S + outer(k, sigmoid(beta[t][h]) * (value - k @ S))
        out[t][h] = q @ S

    ``S`` is ``[key_dim, value_dim]``; the state ``state_index`` is the concatenation of ``S`` of
    all heads. Sums with ``S`` are in ascending order. ``out`` is ``num_heads * value_dim`` wide.
    """

    x: str
    decay: str
    beta: str
    rate: str
    decay_bias: str
    out: str
    state_index: int
    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    epsilon: float
    is_tiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateScan:
    """The selective scan of Mamba-2 (Dao and Gu 2024), token by token.

    ``x`` has ``num_heads`` inputs, ``head_dim`` wide, and then the vectors ``b`` and the vectors
    ``c`` of ``num_groups`` groups of consecutive heads, ``state_dim`` wide; ``step`` is
    ``num_heads`` wide. With ``rate``, ``step_bias`` and ``skip`` ``[num_heads]``::

        d = clip(softplus(step[t][h] + step_bias[h]), least_step, largest_step)
        S = S * exp(rate[h] * d) + outer(b, d * x)
        out[t][h] = c @ S + skip[h] * x

    ``S`` is ``[state_dim, head_dim]``; the state ``state_index`` is the concatenation of ``S`` of
    all heads. Sums over ``state_dim`` are in ascending order.
    """

    x: str
    step: str
    rate: str
    step_bias: str
    skip: str
    out: str
    state_index: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    least_step: float = 0.0
    largest_step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedActivation:
    """``out = activation(gate, up)``, element by element; ``out`` may be ``gate`` or ``up``.

    ``up`` may be wider than ``out``; its columns from ``up_start`` on are used. There is no
    ``gate`` if the activation has none.
    """

    gate: str | None
    up: str
    out: str
    activation: Activation = Activation.SILU
    up_start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: each token passes through the gated layers chosen by the router.

    ``logits`` is the router's register, ``num_experts`` wide, and ``s[e]`` are the scores that
    ``score`` computes from it. Experts are chosen by ``c[e]``, which is ``s[e] +
    e_score_correction_bias[e]`` if there is such a weight ``[num_experts]``, otherwise ``s[e]`` if
    ``score`` is SIGMOID, and else ``logits[t][e]``: the ``num_experts_per_token`` experts with the
    largest ``c``, with ties broken by the lower index. If ``num_groups`` is above 1, experts are
    divided into groups of consecutive experts, and only the ``num_groups_used`` groups with the
    largest sums of their two largest ``c`` are considered (DeepSeek V3).

    Expert ``e`` has the weight ``p[e] = s[e]``; with ``norm_topk_prob`` the weights of the chosen
    experts are divided by their sum. They are multiplied by ``share_scale``, and by
    ``expert_scale[e]`` if there is such a weight ``[num_experts]``. Then, over the chosen experts
    in ascending order, regardless of what else is in the batch::

        out[t] = sum of p[e] * (down[e] @ activation(gate[e] @ x[t], up[e] @ x[t]))

    ``gate`` and ``up`` are ``[num_experts, expert_width, width(x)]``, ``down`` is
    ``[num_experts, width(out), expert_width]``; each may have biases ``[num_experts, rows]``. There
    is no ``gate`` if the activation has none. For a token whose logits contain a NaN or whose
    largest logit is not finite, no expert is chosen and ``out`` is NaN. ``out`` may be ``x``.

    In a group, ``expert_widths[m]`` is the number of rows of ``gate`` and ``up`` of every expert
    that member ``m`` has, in order. They are multiples of 32, or of 16 if there are too few rows,
    and their sum is ``expert_width``. The members exchange ``activation(…)`` before they multiply
    by their rows of ``down``, which correspond to their columns of ``out``.
    """

    x: str
    logits: str
    gate: str | None
    up: str
    down: str
    out: str
    num_experts: int
    num_experts_per_token: int
    expert_width: int
    norm_topk_prob: bool
    activation: Activation = Activation.SILU
    score: ExpertScore = ExpertScore.SOFTMAX
    e_score_correction_bias: str | None = None
    num_groups: int = 1
    num_groups_used: int = 1
    share_scale: float = 1.0
    expert_scale: str | None = None
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None
    expert_widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmoidGate:
    """``x *= sigmoid(gate)``; ``gate`` is as wide as ``x``, or 1 wide for a factor per token."""

    x: str
    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``x *= factor``."""

    x: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """``x *= weight``; the weight is ``[width(x)]``, or ``[1]`` for all columns."""

    x: str
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """``x += scale * y``; a ``scale`` of 1 adds without a multiplication."""

    x: str
    y: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a model, which computes the results from ``x``.

    These are logits ``[num_wanted, vocab] = weight @ x[t]`` for the tokens whose logits are needed,
    and vectors from the rows of ``x`` (see ``Pooling``). If ``weight`` is None, there are no
    logits. Logits are multiplied by ``scale``, and then become ``softcap * tanh(logit / softcap)``
    if there is a ``softcap``.

    In a group, member ``m`` has the rows ``[bounds[m], bounds[m + 1])`` of the weight, and sends
    their logits to member 0, which samples.
    """

    x: str
    weight: str | None
    vocab_size: int
    scale: float = 1.0
    softcap: float | None = None
    bounds: tuple[int, ...] = ()


Op = (
    Embed
    | RmsNorm
    | LayerNorm
    | Linear
    | AllGather
    | HeadLinear
    | CopyColumns
    | Rope
    | Attention
    | CausalConv
    | GatedDelta
    | StateScan
    | GatedActivation
    | Moe
    | SigmoidGate
    | Scale
    | Multiply
    | Add
    | Head
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Decoder layers ``[start_layer, end_layer)`` (may be empty) of a model of ``num_layers``.

    With ``part`` it is the part of these layers that one member of a group holds.
    """

    start_layer: int
    end_layer: int
    num_layers: int
    has_embedding: bool = False
    has_head: bool = False
    part: GroupPart | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_layer <= self.end_layer <= self.num_layers:
            raise ValueError(f"invalid layer range: {self}")

    @property
    def is_led(self) -> bool:
        """Whether another member of its group leads the stage."""
        return self.part is not None and not self.part.is_leader

    def divided(self, shares: Sequence[int]) -> tuple[Shard, ...]:
        """Return what the members of a group with these shares hold of it, leader first."""
        return tuple(
            replace(self, part=GroupPart(member=member, shares=tuple(shares)))
            for member in range(len(shares))
        )

    @classmethod
    def whole(cls, num_layers: int) -> Shard:
        """Return the shard that is the whole model."""
        return cls(
            start_layer=0,
            end_layer=num_layers,
            num_layers=num_layers,
            has_embedding=True,
            has_head=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTable:
    """``cos`` and ``sin``: float32 ``[context_tokens, rotary_dim / 2]``, scaling included.

    It is computed once per model in float64 and rounded, so that all engines use identical values.
    """

    cos: NDArray[np.float32] = field(repr=False)
    sin: NDArray[np.float32] = field(repr=False)


class WeightRole(enum.Enum):
    """The purpose of a weight, as far as it determines the required precision.

    An embedding that is also the head is a HEAD in every stage that has it. A floating-point ROUTER
    is kept in float32 and never quantized, because small errors would change the choice of experts.
    An EXPERT_BIAS has a vector for each expert.
    """

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION_VALUE = "attention_value"
    MLP_DOWN = "mlp_down"
    ROUTER = "router"
    EXPERT_BIAS = "expert_bias"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRows:
    """The part ``[start, start + shape[axis])`` of a dimension of a tensor with size ``total``.

    Dimension 0 is the rows of a matrix, the elements of a vector, or the heads of a stack of
    per-head matrices. Dimension 1 is the rows of each expert's matrix, or the elements of its bias.
    """

    start: int
    total: int
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """A tensor that a program reads: its canonical name and the shape it must have.

    ``[experts, rows, columns]`` is a stack of matrices. ``layer`` is the decoder layer that it
    belongs to, counted from the model's first. With ``rows`` the program only reads these rows of
    the model's tensor; ``shape`` is then their shape, and ``whole_shape`` that of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    role: WeightRole = WeightRole.OTHER
    layer: int | None = None
    rows: WeightRows | None = None

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the model's whole tensor."""
        if self.rows is None:
            return self.shape
        axis = self.rows.axis
        return (*self.shape[:axis], self.rows.total, *self.shape[axis + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """The cached keys and values of each position, for the attention ops of one ``cache_index``.

    Several ops may read one cache; the first of them fills it. Keys are ``head_dim`` wide, and
    values ``value_dim``, which is 0 if values are columns of the keys.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """The state of a whole sequence for the op with one ``state_index``.

    It is float32 ``[rows, width]``, with zeros before the first token.
    """

    rows: int
    width: int

    @property
    def num_bytes(self) -> int:
        """The size of one sequence's state."""
        return 4 * self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The computation of one stage. ``weights`` lists every tensor that it reads once."""

    shard: Shard
    registers: tuple[Register, ...]
    ops: tuple[Op, ...]
    weights: tuple[WeightSpec, ...]
    caches: tuple[CacheSpec, ...]
    ropes: tuple[RopeTable, ...]
    hidden_size: int
    vocab_size: int
    context_tokens: int
    states: tuple[StateSpec, ...] = ()

    @property
    def head(self) -> Head | None:
        """The last op, on the stage with the head; None on any other."""
        last = self.ops[-1] if self.ops else None
        return last if isinstance(last, Head) else None

    @property
    def has_logits(self) -> bool:
        """Whether there is a head with a weight."""
        return self.head is not None and self.head.weight is not None

    def width(self, register: str) -> int:
        """Return the width of a register, by its name."""
        return next(each.width for each in self.registers if each.name == register)
