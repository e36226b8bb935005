"""The speed of units and links, measured during use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from potluck.types.cluster import NodeId, UnitId

_MAX_COUNT = 1 << 24
"""More than the number of layers, sequences, tokens or samples of any step time."""

_MAX_SECONDS = 1e6
"""More than eleven days, which is longer than any step takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The long-run time of one kind of step on one kind of stage, in seconds.

    It is a mean of recent steps that is robust against rare outliers (``scheduling.step_times``).

    The stage has ``num_layers`` decoder layers, and the embedding or the head as indicated. The
    step has ``num_tokens`` new tokens of ``num_sequences`` sequences, which have ``context_tokens``
    each on average, including the new ones. A step with as many tokens as sequences is a decode; a
    step with more tokens is a prefill. ``seconds`` is the time in the engine, without edges. The
    last of the ``num_samples`` steps ended ``age_seconds`` ago.
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
        """Whether the values are possible; other processes and nodes may send anything."""
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
    """The speed of the link from the reporting node to ``node_id``.

    ``latency_seconds`` is the one-way latency: half the round trip of a small frame over an edge's
    connection. ``bytes_per_second`` is the rate of a large frame. Both are medians of
    ``num_samples`` measurements, the last of which was ``age_seconds`` ago.
    """

    node_id: NodeId
    latency_seconds: float
    bytes_per_second: float
    num_samples: int
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpeeds:
    """A node's measurements of models on its units, and of its links to other nodes.

    ``step_times`` are by shape (``model_shape``) and unit, for the requested shapes.
    ``unreachable`` are the nodes to which the node could not connect at its last attempt.
    """

    node_id: NodeId
    step_times: dict[str, dict[UnitId, tuple[StepTime, ...]]] = field(default_factory=dict)
    links: tuple[LinkSpeed, ...] = ()
    unreachable: tuple[NodeId, ...] = ()
