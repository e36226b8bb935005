"""Programs: what an engine runs.

A program is a list of ops over named *registers*. A register is a float32 matrix with one row per
token of the step and a fixed width; weights are named tensors (canonical names, see
``potluck.models``). ``potluck.engines.reference`` says what every op means.

A program covers one shard. When it has the embedding, it begins with ``Embed``; otherwise the
register ``hidden`` is the stage's input. When it has the head it ends with ``Head``; otherwise
the register ``hidden`` is the stage's output.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HIDDEN = "hidden"
"""The register that goes from stage to stage: the residual stream, float32."""


class Activation(enum.Enum):
    """What a feed-forward layer makes of ``gate`` and ``up``, element by element.

    SILU: ``gate / (1 + exp(-gate)) * up`` (Shazeer 2020, SwiGLU). GELU_TANH: ``0.5 gate (1 +
    tanh(sqrt(2/pi) (gate + 0.044715 gate^3))) * up`` (Hendrycks and Gimpel 2016). CLAMPED_SWIGLU is
    that of gpt-oss: ``g = min(gate, 7)``, ``u = clip(up, -7, 7)``, ``g / (1 + exp(-1.702 g)) * (u +
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
    """How the logits of a router become scores: softmax over all experts, or each by itself."""

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

    A program may have several, all on the stage with the embedding.
    """

    weight: str
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """``out = x / sqrt(mean(x²) + epsilon) * weight`` over groups of ``group`` columns.

    For the norms of the residual stream ``group`` is the width and weight is ``[width]``; for
    per-head norms (Qwen 3) it is the head size and weight ``[head_dim]`` serves every head.
    Without a weight the factors are 1 (Gemma 4's values). ``out`` may be ``x``.
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
class HeadLinear:
    """A product for each head with a matrix of its own; weight is ``[num_heads, rows, columns]``.

    ``out[t][out_start + h * out_stride + i] = (weight[h] @ x_h)[i]``, where ``x_h`` are the
    ``columns`` numbers of ``x[t]`` from ``x_start + h * x_stride`` on. The other columns of ``out``
    stay as they are. ``out`` is not ``x``.
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
    """Columns of ``x`` become columns of ``out``: ``count`` of each of ``num_groups`` groups.

    ``out[t][out_start + g * out_stride + i] = x[t][x_start + g * x_stride + i]``. The other columns
    of ``out`` stay as they are. ``out`` is not ``x``.
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

    ``table`` counts the tables from 0; ``rotary_dim`` is twice the width of its cosines. What is
    beyond ``rotary_dim`` in a head stays as it is.
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
    softcap)`` before the softmax (Gemma 2). ``sinks`` ``[num_heads]`` are logits that take part in
    the softmax of their head and have no value (gpt-oss).

    Values are ``value_dim`` wide, and so is a head of ``out``; None: as wide as keys. With
    ``value_start`` there is no ``v``: the value of a position is its key's columns ``[value_start,
    value_start + value_dim)``, as the cache has them. This is multi-head latent attention with
    absorbed matrices (DeepSeek V2): one key of a rotated part and a latent part for all heads.
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
    """A short convolution of every column by itself over the sequence's last rows of ``x``.

    ``out[t][c] = sum over j < k of weight[c][j] * x[t - k + 1 + j][c] + bias[c]``, in ascending
    order of ``j``, and with ``has_silu`` ``y / (1 + exp(-y))`` of that. Weight is a vector
    ``[width(x) * k]``, the factors of a column side by side; bias ``[width(x)]`` or None. The state
    ``state_index`` has the ``k - 1`` rows of ``x`` before the next token, ``[k - 1, width(x)]``,
    oldest first. ``k`` is ``kernel``. ``out`` may be ``x``.
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
    """The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), token after token.

    ``x`` has the queries and the keys of ``num_key_heads`` heads, ``key_dim`` wide, and then the
    values of ``num_heads`` heads, ``value_dim`` wide; ``decay`` and ``beta`` are ``num_heads``
    wide. Head ``h`` has the queries and keys of key head ``h // (num_heads / num_key_heads)``, or
    with ``is_tiled`` of ``h % num_key_heads``. With ``rate`` and ``decay_bias`` ``[num_heads]``::

        q = query / sqrt(sum(query²) + epsilon) / sqrt(key_dim)
        k = key / sqrt(sum(key²) + epsilon)
        S = S * exp(rate[h] * softplus(decay[t][h] + decay_bias[h]))
        S = S + outer(k, sigmoid(beta[t][h]) * (value - k @ S))
        out[t][h] = q @ S

    ``S`` is ``[key_dim, value_dim]``; the state ``state_index`` has those of all heads, one after
    another. The sums with ``S`` go in ascending order. ``out`` is ``num_heads * value_dim`` wide.
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
    """The selective scan of Mamba-2 (Dao and Gu 2024), token after token.

    ``x`` has ``num_heads`` inputs, ``head_dim`` wide, and then the vectors ``b`` and the vectors
    ``c`` of ``num_groups`` groups of neighbouring heads, ``state_dim`` wide; ``step`` is
    ``num_heads`` wide. With ``rate``, ``step_bias`` and ``skip`` ``[num_heads]``::

        d = clip(softplus(step[t][h] + step_bias[h]), least_step, largest_step)
        S = S * exp(rate[h] * d) + outer(b, d * x)
        out[t][h] = c @ S + skip[h] * x

    ``S`` is ``[state_dim, head_dim]``; the state ``state_index`` has those of all heads, one after
    another. Sums over ``state_dim`` go in ascending order.
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

    Of ``up``, which may be wider than ``out``, the columns from ``up_start`` on are taken. There is
    no ``gate`` where the activation has none.
    """

    gate: str | None
    up: str
    out: str
    activation: Activation = Activation.SILU
    up_start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: each token passes through the gated layers that its router chose.

    ``logits`` is the router's register, ``num_experts`` wide, and ``s[e]`` the score that ``score``
    makes of them. Experts are chosen by ``c[e]``, which is ``logits[t][e]``, or where there is a
    ``correction`` ``[num_experts]`` or ``score`` is SIGMOID ``s[e] + correction[e]``: the
    ``num_experts_per_token`` experts with the largest ``c``, of equal ones those with lower
    indices. With ``num_groups`` above 1 experts are in groups of neighbours, of which only the
    ``num_groups_used`` are looked at whose two largest ``c`` have the largest sums (DeepSeek V3).

    Expert ``e`` has the share ``p[e] = s[e]``; with ``normalize_shares`` the shares of the chosen
    are divided by their sum. They are multiplied by ``share_scale`` and by ``expert_scale[e]``,
    where there is such a weight ``[num_experts]``. Then, over the chosen in ascending order,
    whatever else is in the batch::

        out[t] = sum of p[e] * (down[e] @ activation(gate[e] @ x[t], up[e] @ x[t]))

    ``gate`` and ``up`` are ``[num_experts, expert_width, width(x)]``, ``down`` is
    ``[num_experts, width(out), expert_width]``; each may have biases ``[num_experts, rows]``. There
    is no ``gate`` where the activation has none. Of a
    token whose logits have a NaN, or no largest that is finite, ``out`` is NaN: no expert was
    chosen. ``out`` may be ``x``.
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
    normalize_shares: bool
    activation: Activation = Activation.SILU
    score: ExpertScore = ExpertScore.SOFTMAX
    correction: str | None = None
    num_groups: int = 1
    num_groups_used: int = 1
    share_scale: float = 1.0
    expert_scale: str | None = None
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None


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
    """``x *= weight``; the weight is ``[width(x)]``, or ``[1]`` for all columns alike."""

    x: str
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """``x += scale * y``; a ``scale`` of 1 adds without a product."""

    x: str
    y: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a model: what is wanted of ``x``.

    Logits ``[num_wanted, vocab] = weight @ x[t]`` for the tokens whose logits are wanted, and
    vectors of the rows of ``x`` (see ``Pooling``). Where ``weight`` is None there are no logits.
    They are multiplied by ``scale``, and with ``softcap`` then become ``softcap * tanh(logit /
    softcap)``.
    """

    x: str
    weight: str | None
    vocab_size: int
    scale: float = 1.0
    softcap: float | None = None


Op = (
    Embed
    | RmsNorm
    | LayerNorm
    | Linear
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
    """Decoder layers ``[start_layer, end_layer)`` (may be empty) of a model of ``num_layers``."""

    start_layer: int
    end_layer: int
    num_layers: int
    has_embedding: bool
    has_head: bool

    def __post_init__(self) -> None:
        if not 0 <= self.start_layer <= self.end_layer <= self.num_layers:
            raise ValueError(f"no such layer range: {self}")

    @classmethod
    def whole(cls, num_layers: int) -> Shard:
        """The shard that is the whole model."""
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

    Made once per model, in float64 and rounded, so that every engine rotates by the same bits.
    """

    cos: NDArray[np.float32] = field(repr=False)
    sin: NDArray[np.float32] = field(repr=False)


class WeightRole(enum.Enum):
    """What a weight is for, as far as the precision that it needs goes.

    An embedding that is also the head is a HEAD, in every stage that has it. A ROUTER of floats is
    kept in float32 and never quantized, because with small errors it would choose other experts.
    """

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION_VALUE = "attention_value"
    MLP_DOWN = "mlp_down"
    ROUTER = "router"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpec:
    """A tensor that a program reads: its canonical name and the shape it must have.

    ``[experts, rows, columns]`` is a stack of matrices. ``layer`` is the decoder layer that it
    belongs to, counted from the model's first.
    """

    name: str
    shape: tuple[int, ...]
    role: WeightRole = WeightRole.OTHER
    layer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What is kept of every position for the attention ops of one ``cache_index``: keys and values.

    Several ops may read one cache; the first of them fills it. Keys are ``head_dim`` wide, values
    ``value_dim``, which is 0 where values are columns of the keys.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """What is kept of a whole sequence for the op of one ``state_index``.

    It is float32 ``[rows, width]``, all zeros before the first token.
    """

    rows: int
    width: int

    @property
    def num_bytes(self) -> int:
        """Of one sequence."""
        return 4 * self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one stage computes. ``weights`` lists every tensor it reads, each once."""

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
        """The last op of the stage with the head."""
        last = self.ops[-1] if self.ops else None
        return last if isinstance(last, Head) else None

    @property
    def has_logits(self) -> bool:
        """Whether there is a head that has a weight."""
        return self.head is not None and self.head.weight is not None

    def width(self, register: str) -> int:
        """Return the width of a register, by its name."""
        return next(each.width for each in self.registers if each.name == register)
