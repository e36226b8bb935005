"""The input of planning, plans, and predictions."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from potluck.types.choices import DEFAULT_NUM_STREAMS, Objective
from potluck.types.cluster import NodeId, OnUnit, UnitId
from potluck.types.groups import LayoutStage
from potluck.types.program import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The user's preferences for a plan.

    ``num_streams`` is the number of streams that decode at once, for plans for throughput. Decoding
    is predicted for sequences of ``context_tokens``, and the time to the first token for a prompt
    of ``prompt_tokens``. A ``layout`` fixes the plan; if it is empty, the best plan is searched.
    Each stage is held by a group of ``tensor_parallel`` units, by a single unit if it is 1, and by
    what is predicted to be best if it is None.
    """

    objective: Objective = Objective.LATENCY
    num_streams: int = DEFAULT_NUM_STREAMS
    context_tokens: int = 512
    prompt_tokens: int = 512
    layout: tuple[LayoutStage, ...] = ()
    tensor_parallel: int | None = None


def wanted_streams(objective: Objective, num_streams: int) -> int:
    """Return the number of streams that the user wants at once, and that must be able to be live.

    For objectives other than throughput, the default number is only used for predictions.
    """
    is_wanted = objective is Objective.THROUGHPUT or num_streams != DEFAULT_NUM_STREAMS
    return num_streams if is_wanted else 1


class Basis(enum.Enum):
    """The basis of the predicted time of a stage or a hop, best first. Each has a margin."""

    SERVED = "served"
    """Measured steps of this model on the unit, or frames on the link."""
    MEASURED = "measured"
    """The trial of the unit's backend, or a measurement of the link."""
    TABLE = "table"
    ASSUMED = "assumed"
    """A conservative default, since nothing is known."""


def worst(*bases: Basis) -> Basis:
    """Return the least certain basis of several figures."""
    return max(bases, key=tuple(Basis).index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction(OnUnit):
    """The prediction for one stage: seconds per step within the engine, and per hop to the next.

    ``decode_seconds`` is for a step of one sequence, ``loaded_seconds`` for a step in which
    ``Preferences.num_streams`` decode, and ``prefill_seconds_per_token`` for a long chunk.
    ``hop_seconds`` is the delay until the next stage (or the coordinator, after the last stage)
    receives a step of one sequence. The members of a group have the same times, because they wait
    for each other, and the hop is the leader's; ``exchange_seconds`` is the part of
    ``decode_seconds`` spent in their exchanges.
    """

    node_id: NodeId
    unit_id: UnitId
    decode_seconds: float
    loaded_seconds: float
    prefill_seconds_per_token: float
    hop_seconds: float
    basis: Basis
    exchange_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for a whole plan.

    ``entry_seconds`` is the hop from the coordinator to the first stage. ``token_seconds`` is the
    time per token of one stream, and ``tokens_per_second`` its inverse. ``total_tokens_per_second``
    is the rate of ``num_streams`` streams together, with ``steps_in_flight`` steps at a time.
    ``bottleneck`` is the index of the stage (of a group, its leader) that limits that rate; None if
    the latency of the whole pipeline limits it. ``margin`` is relative: measured times are expected
    within ``1 ± margin`` of these. It is the mean of the margins of all stages and hops, weighted
    by their share of the time per token. No plan is better than this one by more than the fraction
    ``gap``, which is 0 if the plan was proved to be the best. ``link_basis`` is the basis of the
    hops, if they widen the margin.
    """

    stages: tuple[StagePrediction, ...]
    entry_seconds: float
    token_seconds: float
    tokens_per_second: float
    first_token_seconds: float
    prompt_tokens: int
    num_streams: int
    total_tokens_per_second: float
    steps_in_flight: int
    bottleneck: int | None
    margin: float
    gap: float = 0.0
    link_basis: Basis | None = None

    def rate(self, objective: Objective) -> float:
        """Return the tokens per second that count for an objective."""
        is_throughput = objective is Objective.THROUGHPUT
        return self.total_tokens_per_second if is_throughput else self.tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOffer(OnUnit):
    """A unit on which stages can be placed, and the memory that they may use there.

    ``spared_bytes`` is the difference between a model's cost, which is that of the most demanding
    unit, and the requirement of a stage on this unit.
    """

    node_id: NodeId
    unit_id: UnitId
    usable_bytes: int
    spared_bytes: int = 0


def inseparable_layers(num_layers: int, no_cuts: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Return the layers ``[start, end)`` of each group that no stage begins within, in order.

    No stage begins before the layers in ``no_cuts``.
    """
    cuts = (layer for layer in range(1, num_layers) if layer not in no_cuts)
    return tuple(pairwise((0, *cuts, num_layers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Upper bounds of the memory requirements of a model's parts in bytes, on any unit.

    ``layer_bytes`` are the weights, cache and states of each decoder layer. ``embedding_bytes`` are
    needed on the first stage and ``head_bytes`` on the last, each including its scratch and staging
    memory; ``shared_bytes`` of both are only needed once if one stage has both (a tied head is the
    embedding). ``scratch_bytes`` and ``process_bytes`` are needed on every stage. No stage requires
    more than the sum of its parts. A stage that has only the embedding or only the head requires
    ``lone_embedding_bytes`` or ``lone_head_bytes`` in total, which is less.

    Stages are not cut before the layers in ``no_cuts`` (see ``ModelConfig.no_cuts``). The sizes of
    layers that cannot be separated are only correct in total.
    """

    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    shared_bytes: int
    scratch_bytes: int
    process_bytes: int
    lone_embedding_bytes: int
    lone_head_bytes: int
    no_cuts: frozenset[int] = frozenset()

    @classmethod
    def largest(cls, costs: Sequence[ModelCost]) -> ModelCost:
        """Return the most that each part costs, and the least that one stage with both ends saves.

        The ``costs`` are of one model.
        """
        return cls(
            layer_bytes=tuple(map(max, zip(*(cost.layer_bytes for cost in costs), strict=True))),
            embedding_bytes=max(cost.embedding_bytes for cost in costs),
            head_bytes=max(cost.head_bytes for cost in costs),
            shared_bytes=min(cost.shared_bytes for cost in costs),
            scratch_bytes=max(cost.scratch_bytes for cost in costs),
            process_bytes=max(cost.process_bytes for cost in costs),
            lone_embedding_bytes=max(cost.lone_embedding_bytes for cost in costs),
            lone_head_bytes=max(cost.lone_head_bytes for cost in costs),
            no_cuts=frozenset().union(*(cost.no_cuts for cost in costs)),
        )

    @property
    def item_bytes(self) -> tuple[int, ...]:
        """Return the sizes of the embedding, of each layer and of the head."""
        return (self.embedding_bytes, *self.layer_bytes, self.head_bytes)

    @property
    def model_bytes(self) -> int:
        """Return the size of the whole model on one stage, in addition to ``stage_bytes``."""
        return sum(self.item_bytes) - self.shared_bytes

    @property
    def stage_bytes(self) -> int:
        """Return what every stage needs in addition to its items."""
        return self.scratch_bytes + self.process_bytes

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Return the layers ``[start, end)`` of each group that cannot be separated, in order."""
        return inseparable_layers(len(self.layer_bytes), self.no_cuts)

    @property
    def least_layer_bytes(self) -> int:
        """Return the size of the smallest group of layers, which is the minimum for a stage."""
        return min(sum(self.layer_bytes[start:end]) for start, end in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage(OnUnit):
    """A shard placed on a unit, and the maximum memory that it requires there.

    If ``is_mapped``, its weights are mapped even if the plan does not map weights, because a worker
    already holds the stage with mapped weights.
    """

    node_id: NodeId
    unit_id: UnitId
    shard: Shard
    num_bytes: int
    is_mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection(OnUnit):
    """An unused unit, with the reason."""

    node_id: NodeId
    unit_id: UnitId
    reason: str

    @classmethod
    def of(cls, unit: OnUnit, reason: str) -> Rejection:
        """Return the rejection of a unit."""
        return cls(node_id=unit.node_id, unit_id=unit.unit_id, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered stages that together hold a whole model, and the unused units.

    The members of a group are consecutive in ``stages``, the leader first; their shards differ only
    in ``part``. ``prediction`` is None for a plan that was made without regard to speed.
    """

    stages: tuple[PlacedStage, ...]
    rejections: tuple[Rejection, ...]
    prediction: Prediction | None = None
