"""How fast units and links are, as they were measured while they were used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from potluck.types.cluster import NodeId, UnitId

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
