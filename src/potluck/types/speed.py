"""How fast units and links are, as they were measured while they were used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from potluck.types.cluster import NodeId, UnitId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from potluck.types.arithmetic import Arithmetic
    from potluck.types.model import ExpertsConfig, ModelConfig

_MAX_COUNT = 1 << 24
"""More than any layers, sequences, tokens or samples that a step time has."""

_MAX_SECONDS = 1e6
"""More than eleven days: no step takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """What one kind of step takes on one kind of stage in the long run, in seconds.

    It is a mean of recent steps that rare outliers do not change (``cluster.block_means``).

    The stage has ``num_layers`` decoder layers, and the embedding or the head as it says. The step
    has ``num_tokens`` new tokens of ``num_sequences`` sequences, which have ``context_tokens`` each
    on average, the new ones included. A step with as many tokens as sequences decodes, one with
    more prefills. ``seconds`` is the time within the engine, without edges. The last of the
    ``num_samples`` steps ended ``age_seconds`` ago.
    """

    num_layers: int
    has_embedding: bool
    has_head: bool
    num_sequences: int
    num_tokens: int
    context_tokens: int
    seconds: float
    num_samples: int
    age_seconds: float = 0.0

    @property
    def is_plausible(self) -> bool:
        """Whether a stage can have computed this; other processes and nodes may send anything."""
        counts = (self.num_sequences, self.num_tokens, self.context_tokens, self.num_samples)
        return (
            all(1 <= count <= _MAX_COUNT for count in counts)
            and 0 <= self.num_layers <= _MAX_COUNT
            and self.num_tokens >= self.num_sequences
            and (self.num_layers > 0 or self.has_embedding or self.has_head)
            and 0 < self.seconds <= _MAX_SECONDS
            and self.age_seconds >= 0
            and math.isfinite(self.age_seconds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """The way from the node that reports this to ``node_id``.

    ``latency_seconds`` is one way: half of a round trip of a small frame over an edge's connection.
    ``bytes_per_second`` is what a large frame reached. ``num_samples`` counts the measurements,
    of which both are medians; the last was ``age_seconds`` ago.
    """

    node_id: NodeId
    latency_seconds: float
    bytes_per_second: float
    num_samples: int
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpeeds:
    """What a node has measured: of one model on its units, and of its links to others.

    ``step_times`` are by shape (``model_shape``) and unit, of the shapes that were asked for.
    """

    node_id: NodeId
    step_times: dict[str, dict[UnitId, tuple[StepTime, ...]]] = field(default_factory=dict)
    links: tuple[LinkSpeed, ...] = ()


def model_shape(config: ModelConfig, format_label: str, arithmetic: Arithmetic) -> str:
    """Return a name for everything but depth that step times depend on, on one unit.

    ``format_label`` is the format of most bytes of the layers' matrices as they are loaded. Models
    of one shape whose number of layers differs have one name. It has letters, digits, ``-``, ``_``
    and ``.`` only and at most 150 characters.
    """
    attentions = [each.attention for each in config.layers]
    mlps = [each.mlp for each in config.layers if each.mlp is not None]
    experts = [each.experts for each in config.layers if each.experts is not None]
    windows = [each.window for each in attentions if each.window is not None]
    parts = [
        config.family,
        f"h{config.hidden_size}",
        f"i{_each(each.width for each in mlps) or 0}",
        f"q{_each(each.num_heads for each in attentions)}",
        f"kv{_each(each.num_kv_heads for each in attentions)}",
        f"d{_each(each.head_dim for each in attentions)}",
        f"v{config.vocab_size}",
        *([f"w{min(windows)}"] if windows else []),
        *(
            f"e{each.num_experts}.{each.num_experts_per_token}.{each.width}"
            for each in dict.fromkeys(experts)
        ),
        *(f"s{width}" for width in _widths_of_shared(experts)),
        format_label,
        arithmetic.value,
    ]
    kept = (c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in "-".join(parts))
    return "".join(kept)[:150]


def _each(values: Iterable[int]) -> str:
    """Every value once: layers of one model may differ."""
    return ".".join(map(str, dict.fromkeys(values)))


def _widths_of_shared(experts: Iterable[ExpertsConfig]) -> list[int]:
    return list(dict.fromkeys(each.shared.width for each in experts if each.shared is not None))
