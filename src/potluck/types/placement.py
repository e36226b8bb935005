"""What plans are made from and for, plans, and what is predicted of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise

from potluck.types.cluster import NodeId, UnitId
from potluck.types.program import Shard


class Objective(enum.Enum):
    """What the best plan is best at."""

    LATENCY = "latency"
    """Least time per token of one stream."""
    THROUGHPUT = "throughput"
    """Most tokens per second of several streams together."""
    MEMORY = "memory"
    """Every unit in proportion to its memory, so that the fullest is least full."""


class Rebalance(enum.Enum):
    """Whether a deployment moves when a much better plan is found."""

    AUTO = "auto"
    ASK = "ask"
    """The better plan is shown; ``potluck rebalance`` carries it out."""
    NEVER = "never"


DEFAULT_NUM_STREAMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutStage:
    """A stage that the user wants: so many decoder layers on this unit.

    The first stage of a layout has the embedding too, and the last one the head.
    """

    node_id: NodeId
    unit_id: UnitId
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What a plan is made for.

    ``num_streams`` decode at once where throughput counts. Decoding is predicted for sequences of
    ``context_tokens``, the time to the first token for a prompt of ``prompt_tokens``. A ``layout``
    leaves nothing to choose; with an empty one the best plan is looked for.
    """

    objective: Objective = Objective.LATENCY
    num_streams: int = DEFAULT_NUM_STREAMS
    context_tokens: int = 512
    prompt_tokens: int = 512
    layout: tuple[LayoutStage, ...] = ()


def wanted_streams(objective: Objective, num_streams: int) -> int:
    """Return how many streams somebody wants at the same time, and must be able to be live.

    The default number is only what a plan for something else predicts besides.
    """
    is_wanted = objective is Objective.THROUGHPUT or num_streams != DEFAULT_NUM_STREAMS
    return num_streams if is_wanted else 1


class Basis(enum.Enum):
    """What the predicted time of a stage or a hop rests on, best first. Each has a margin."""

    SERVED = "served"
    """Steps of this model that the unit has computed, or frames that the link has carried."""
    MEASURED = "measured"
    """The trial of the unit's backend, or a probe of the link."""
    TABLE = "table"
    ASSUMED = "assumed"
    """Nothing is known: a cautious default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One stage: seconds per step within the engine, and per hop to what follows it.

    ``decode_seconds`` is of a step of one sequence, ``loaded_seconds`` of a step as it is when
    ``Preferences.num_streams`` decode, ``prefill_seconds_per_token`` of a long chunk.
    ``hop_seconds`` is what the next stage (of the last stage: the coordinator) gets a step of one
    sequence later.
    """

    node_id: NodeId
    unit_id: UnitId
    decode_seconds: float
    loaded_seconds: float
    prefill_seconds_per_token: float
    hop_seconds: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of a whole plan.

    ``entry_seconds`` is the hop from the coordinator to the first stage. ``token_seconds`` is the
    time per token of one stream, ``tokens_per_second`` its inverse, ``total_tokens_per_second``
    that of ``num_streams`` streams together with ``steps_in_flight`` steps at a time. The
    ``bottleneck`` is the index of the stage that limits that rate; None where the way through all
    stages and back does. ``margin`` is relative: measured times are expected within
    ``1 ± margin`` of these. It is the mean of the margins of all stages and hops, weighted by their
    shares of the time per token. ``gap``: no plan is better than this one by more than this part, 0
    if it was proved best. ``link_basis`` is what the hops rest on, where they widen the margin.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOffer:
    """A unit that stages can be placed on, and the memory they may use there.

    ``spared_bytes`` is by how much less a stage takes there than a model's cost says, which is
    that of the most demanding unit.
    """

    node_id: NodeId
    unit_id: UnitId
    usable_bytes: int
    spared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What a model's parts take, in bytes, wherever they are placed: at most.

    ``layer_bytes``: weights, cache and states of each decoder layer. ``embedding_bytes`` on the
    first stage, ``head_bytes`` on the last, each with what is computed and loaded through for it
    alone; ``shared_bytes`` of the two are held once when one stage has both (a tied head is the
    embedding). ``scratch_bytes`` and ``process_bytes`` on every stage. No stage takes more than
    the sum of its parts, and an end without a layer takes ``lone_embedding_bytes`` or
    ``lone_head_bytes`` in all, which is less.

    No stage begins or ends before a layer in ``no_cuts`` (see ``ModelConfig.can_cut_before``); what
    layers take that are never cut apart is right for all of them together.
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

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Return the layers ``[start, end)`` of every group that is never cut apart, in order."""
        last = len(self.layer_bytes)
        bounds = [0, *(layer for layer in range(1, last) if layer not in self.no_cuts), last]
        return tuple(pairwise(bounds))

    @property
    def least_layer_bytes(self) -> int:
        """Return what the smallest group of layers takes: no stage with layers has fewer."""
        return min(sum(self.layer_bytes[start:end]) for start, end in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A shard placed on a unit, and the bytes it takes there at most.

    ``is_mapped``: its weights are mapped whether or not the plan is to map them, because a worker
    holds it so already.
    """

    node_id: NodeId
    unit_id: UnitId
    shard: Shard
    num_bytes: int
    is_mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A unit that got nothing, and why."""

    node_id: NodeId
    unit_id: UnitId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered stages that together hold a whole model, and who was left out.

    ``prediction`` is None for a plan that was made without regard to speed.
    """

    stages: tuple[PlacedStage, ...]
    rejections: tuple[Rejection, ...]
    prediction: Prediction | None = None
