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
    """The non-linearity of a gated feed-forward layer."""

    SILU = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A float32 matrix ``[num_tokens, width]``."""

    name: str
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """``out[t] = weight[token[t]]``; weight is ``[vocab, width(out)]``."""

    weight: str
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """``out = x / sqrt(mean(x²) + epsilon) * weight`` over groups of ``group`` columns.

    For the norms of the residual stream ``group`` is the width and weight is ``[width]``; for
    per-head norms (Qwen 3) it is the head size and weight ``[head_dim]`` serves every head.
    ``out`` may be ``x``.
    """

    x: str
    weight: str
    out: str
    group: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """``out[t] = weight @ x[t] + bias``; weight is ``[width(out), width(x)]``, bias may be None."""

    x: str
    weight: str
    out: str
    bias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotate pairs ``(i, i + head_dim/2)`` of every head of ``x`` in place by the program's rope
    table at each token's position (the "neox" or rotate-half form, Su et al. 2021).
    """

    x: str
    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal grouped-query attention over the paged cache.

    Appends this step's ``k`` and ``v`` rows to the cache of ``cache_index`` (counted from 0 within
    the program), then ``out[t] = softmax(scale * q·K) V`` over the sequence's positions up to and
    including the token's own; with ``window`` only the last ``window`` of them (Mistral: a token
    sees itself and the ``window - 1`` before it).
    """

    q: str
    k: str
    v: str
    out: str
    cache_index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedActivation:
    """``out = activation(gate) * up``, element by element; ``out`` may be ``gate``."""

    gate: str
    up: str
    out: str
    activation: Activation = Activation.SILU


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: each token passes through the gated layers that its router chose.

    ``logits`` is the router's register, ``num_experts`` wide. Of token ``t`` the
    ``num_experts_per_token`` experts with the largest logits are chosen, of equal logits those
    with lower indices. Expert ``e`` has the share ``p[e] = softmax(logits[t])[e]``, over all
    experts; with ``normalize_shares`` the shares of the chosen are divided by their sum. Then, over
    the chosen in ascending order, whatever else is in the batch::

        out[t] = sum of p[e] * (down[e] @ (activation(gate[e] @ x[t]) * (up[e] @ x[t])))

    ``gate`` and ``up`` are ``[num_experts, expert_width, width(x)]``, ``down`` is
    ``[num_experts, width(out), expert_width]``. Of a token whose logits have a NaN, or no largest
    that is finite, ``out`` is NaN: no expert was chosen. ``out`` may be ``x``.
    """

    x: str
    logits: str
    gate: str
    up: str
    down: str
    out: str
    num_experts: int
    num_experts_per_token: int
    expert_width: int
    normalize_shares: bool
    activation: Activation = Activation.SILU


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """``x += y``."""

    x: str
    y: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a model: what is wanted of ``x``.

    Logits ``[num_wanted, vocab] = weight @ x[t]`` for the tokens whose logits are wanted, and
    vectors of the rows of ``x`` (see ``Pooling``). Where ``weight`` is None there are no logits.
    """

    x: str
    weight: str | None
    vocab_size: int


Op = Embed | RmsNorm | Linear | Rope | Attention | GatedActivation | Moe | Add | Head


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
    """``cos`` and ``sin``: float32 ``[context_tokens, head_dim / 2]``, scaling included.

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
    """The key-value cache of one attention op, by ``cache_index``."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one stage computes. ``weights`` lists every tensor it reads, each once."""

    shard: Shard
    registers: tuple[Register, ...]
    ops: tuple[Op, ...]
    weights: tuple[WeightSpec, ...]
    caches: tuple[CacheSpec, ...]
    rope: RopeTable | None
    hidden_size: int
    vocab_size: int
    context_tokens: int

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
