"""The Prometheus metrics of ``/metrics``.

Requests and tokens are measured here, where clients see them; the coordinators' metrics are
requested from the gateway on each scrape. All of them are in a separate registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from potluck.api.admission import Admission
from potluck.types.deployment import DeploymentState
from potluck.types.documents.cluster import StageTimes
from potluck.types.gateway import Gateway, ModelMetrics, StageMetrics
from potluck.types.placement import StagePrediction

_FIRST_TOKEN_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
_BETWEEN_TOKENS_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
"""Buckets from a small model on a fast machine to a large one on slow boards, three per decade; a
model may be reloaded between two tokens."""


class ApiMetrics:
    """Counts requests and tokens. Belongs to one event loop."""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "potluck_http_requests",
            "Requests completed, by endpoint and status (499: the client disconnected)",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self._prompt_tokens = Counter(
            "potluck_prompt_tokens",
            "Prompt tokens",
            ["model"],
            registry=self._registry,
        )
        self._new_tokens = Counter(
            "potluck_generated_tokens",
            "Generated tokens",
            ["model"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "potluck_time_to_first_token_seconds",
            "Time to first token, from the end of the request body",
            ["model"],
            buckets=_FIRST_TOKEN_SECONDS,
            registry=self._registry,
        )
        self._between_tokens = Histogram(
            "potluck_time_between_tokens_seconds",
            "Time between consecutive tokens of a sequence",
            ["model"],
            buckets=_BETWEEN_TOKENS_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_GatewayCollector(gateway, admission))

    def count_request(self, endpoint: str, status: int) -> None:
        """Count a completed request. ``endpoint`` is one of a small fixed set."""
        self._requests.labels(endpoint, str(status)).inc()

    def meter(self, model_id: str, started: float) -> RequestMeter:
        """Return the meter of a request that arrived at ``time.perf_counter()`` ``started``."""
        return RequestMeter(
            started,
            self._prompt_tokens.labels(model_id),
            self._new_tokens.labels(model_id),
            self._first_token.labels(model_id),
            self._between_tokens.labels(model_id),
        )

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass(slots=True, eq=False)
class RequestMeter:
    """Measures one request. Mutable: it keeps the time of the last token of each choice."""

    _started: float
    _prompt_tokens: Counter
    _new_tokens: Counter
    _first_token: Histogram
    _between_tokens: Histogram
    _last: dict[int, float] = field(default_factory=dict)

    def prompts(self, num_tokens: int) -> None:
        """Record the total number of prompt tokens."""
        self._prompt_tokens.inc(num_tokens)

    def token(self, index: int) -> None:
        """Record a token of the choice ``index`` now."""
        now = time.perf_counter()
        if not self._last:
            self._first_token.observe(now - self._started)
        elif index in self._last:
            self._between_tokens.observe(now - self._last[index])
        self._last[index] = now
        self._new_tokens.inc()


class _GatewayCollector(Collector):
    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._gateway = gateway
        self._admission = admission

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registration does not query the gateway."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics that are computed on each scrape."""
        yield GaugeMetricFamily(
            "potluck_http_requests_running",
            "Requests in progress",
            value=self._admission.num_running,
        )
        yield GaugeMetricFamily(
            "potluck_http_requests_queued",
            "Requests waiting for admission",
            value=self._admission.num_queued,
        )
        ready = GaugeMetricFamily(
            "potluck_model_ready", "1 if the model is ready, else 0", labels=["model"]
        )
        for status in self._gateway.models():
            ready.add_metric([status.model_id], float(status.state is DeploymentState.READY))
        yield ready
        models = self._gateway.metrics()
        edges = [
            ([model.model_id, str(edge.edge), edge.sender, edge.receiver], edge)
            for model in models
            for edge in model.edges
        ]

        def of_models(
            prefix: str, rows: Sequence[_Row], totals: Callable[[ModelMetrics], object]
        ) -> Iterator[Metric]:
            sources = [([model.model_id], totals(model)) for model in models]
            return _families(prefix, rows, ["model"], sources)

        yield from _scheduler_families(models)
        yield from of_models("prefix_cache", _PREFIX_CACHE, lambda model: model.prefix)
        yield from of_models("draft", _DRAFTS, lambda model: model.drafts)
        yield from _state_families(models)
        yield from of_models("model", _MODELS, lambda model: model)
        yield from _stage_families(models)
        yield from _families("edge", _EDGES, ["model", "edge", "sender", "receiver"], edges)
        yield from _speed_families(models)


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

_Row = tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str]
"""A metric's type, name and meaning, and the attribute with its value.

There is no sample if the value is None, that is, unknown.
"""

_PREFIX_CACHE: Sequence[_Row] = (
    (_COUNTER, "admissions", "Prefix cache lookups", "num_admissions"),
    (_COUNTER, "hits", "Prefix cache lookups that found a prefix", "num_hits"),
    (
        _COUNTER,
        "saved_tokens",
        "Prompt tokens taken from the prefix cache instead of being computed",
        "num_saved_tokens",
    ),
    (_COUNTER, "evictions", "Cached blocks evicted for other sequences", "num_evictions"),
    (_COUNTER, "restored_tokens", "Tokens restored from the disk cache", "num_restored_tokens"),
    (_COUNTER, "checkpoints", "State checkpoints created", "num_checkpoints"),
    (
        _COUNTER,
        "checkpoint_hits",
        "Sequences that started from a state checkpoint",
        "num_checkpoint_hits",
    ),
    (_COUNTER, "checkpoint_evictions", "State checkpoints evicted", "num_checkpoint_evictions"),
    (
        _COUNTER,
        "uncovered_tokens",
        "Tokens recomputed because no state checkpoint followed them",
        "num_uncovered_tokens",
    ),
)
_DRAFTS: Sequence[_Row] = (
    (_COUNTER, "tokens", "Drafted tokens sent for verification", "num_drafted"),
    (_COUNTER, "accepted_tokens", "Drafted tokens that were accepted", "num_accepted"),
    (_COUNTER, "verifications", "Sequence steps that verified drafts", "num_verifications"),
    (_COUNTER, "samples", "Tokens generated by sequence steps that verified drafts", "num_samples"),
    (_COUNTER, "cancelled_steps", "Steps cancelled because a draft was rejected", "num_cancelled"),
)
_MODELS: Sequence[_Row] = (
    (_GAUGE, "epoch", "Number of the current epoch", "epoch"),
    (_COUNTER, "recoveries", "Recoveries after a loss", "num_recoveries"),
    (
        _GAUGE,
        "recovery_seconds",
        "Time from the most recent loss until the model was ready again",
        "recovery_seconds",
    ),
    (_GAUGE, "spare_stages", "Standby stages that hold weights but are not in use", "num_spares"),
    (_COUNTER, "moves", "Moves to a faster plan", "num_moves"),
    (
        _GAUGE,
        "move_gain_ratio",
        "Predicted speedup of the most recent move (0.2: 20 percent faster)",
        "last_gain",
    ),
)
_STAGES: Sequence[_Row] = (
    (_COUNTER, "steps", "Steps computed", "num_steps"),
    (_COUNTER, "compute_seconds", "Time spent computing steps", "compute_seconds"),
    (_COUNTER, "cpu_seconds", "CPU time used by the thread that computes steps", "cpu_seconds"),
    (_GAUGE, "memory_bytes", "Memory used by the stage's process", "memory_bytes"),
    (_COUNTER, "dropped_frames", "Late or duplicate frames received", "num_dropped_frames"),
    (
        _GAUGE,
        "slowdown",
        "Recent step time of the stage relative to its earlier step times",
        "slowdown",
    ),
)
_GROUP_MEMBERS: Sequence[_Row] = (
    (
        _COUNTER,
        "exchanges",
        "Slice exchanges within the stage's tensor-parallel group",
        "num_exchanges",
    ),
    (
        _COUNTER,
        "exchange_seconds",
        "Time spent in slice exchanges, including waiting for other members",
        "exchange_seconds",
    ),
)
_EDGES: Sequence[_Row] = (
    (_COUNTER, "frames", "Frames sent", "num_frames"),
    (_COUNTER, "bytes", "Bytes sent", "num_bytes"),
    (_COUNTER, "send_seconds", "Time spent sending", "send_seconds"),
)
_STAGE_TIMES: Sequence[_Row] = (
    (
        _GAUGE,
        "decode_seconds",
        "A decode step of one sequence, within the stage's engine",
        "decode_seconds",
    ),
    (
        _GAUGE,
        "loaded_decode_seconds",
        "A decode step of the planned number of streams, within the stage's engine",
        "loaded_seconds",
    ),
    (
        _GAUGE,
        "prefill_token_seconds",
        "A prompt token, in chunks of maximum size, within the stage's engine",
        "prefill_seconds_per_token",
    ),
)


def _families(
    prefix: str,
    rows: Sequence[_Row],
    labels: Sequence[str],
    sources: Sequence[tuple[Sequence[str], object]],
) -> Iterator[Metric]:
    """Yield the metrics in ``rows``, each with one sample per source.

    A source consists of the values of the labels and the object whose attribute is sampled.
    """
    for kind, name, text, attribute in rows:
        family = kind(f"potluck_{prefix}_{name}", text, labels=labels)
        for values, source in sources:
            number = getattr(source, attribute)
            if number is not None:
                family.add_metric(values, number)
        yield family


def _scheduler_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    sequences = GaugeMetricFamily(
        "potluck_sequences", "Live sequences, running or waiting", labels=["model", "state"]
    )
    blocks = GaugeMetricFamily("potluck_kv_blocks", "KV cache blocks", labels=["model", "state"])
    reusable = GaugeMetricFamily(
        "potluck_prefix_cache_blocks",
        "Free KV cache blocks that hold reusable prefixes",
        labels=["model"],
    )
    for model in models:
        sequences.add_metric([model.model_id, "running"], model.num_running)
        sequences.add_metric([model.model_id, "waiting"], model.num_waiting)
        blocks.add_metric([model.model_id, "used"], model.num_blocks - model.num_free_blocks)
        blocks.add_metric([model.model_id, "free"], model.num_free_blocks)
        reusable.add_metric([model.model_id], model.num_kept_blocks)
    yield sequences
    yield blocks
    yield reusable


def _state_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Return the metrics of models with recurrent state: slots and memory over all stages."""
    slots = GaugeMetricFamily("potluck_state_slots", "State slots", labels=["model", "state"])
    memory = GaugeMetricFamily(
        "potluck_state_bytes",
        "Memory used by state slots, over all stages",
        labels=["model", "state"],
    )
    for model in models:
        states = model.states
        counts = {
            "live": states.num_live,
            "checkpoint": states.num_checkpoints,
            "free": states.num_free,
        }
        for state, count in counts.items() if any(counts.values()) else ():
            slots.add_metric([model.model_id, state], count)
            memory.add_metric([model.model_id, state], count * states.slot_bytes)
    yield slots
    yield memory


def _stage_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    labels = ["model", "stage", "node"]
    stages = [
        ([model.model_id, str(stage.stage), stage.node_id], stage)
        for model in models
        for stage in model.stages
    ]
    yield from _families("stage", _STAGES, labels, stages)
    experts = CounterMetricFamily(
        "potluck_stage_experts",
        "Expert matrices used from mapped weights, by where they were found",
        labels=[*labels, "in"],
    )
    for values, stage in stages:
        use = stage.experts
        if use.num_used:
            experts.add_metric([*values, "memory"], use.num_in_memory)
            experts.add_metric([*values, "file"], use.num_used - use.num_in_memory)
    yield experts
    members = [(values, stage) for values, stage in stages if stage.num_exchanges]
    yield from _families("stage", _GROUP_MEMBERS, labels, members)


def _speed_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Return the predicted speeds of the current plans next to recent measurements."""
    rates = GaugeMetricFamily(
        "potluck_model_tokens_per_second",
        "Predicted or measured tokens per second, for one stream and for several together",
        labels=["model", "streams", "figure"],
    )
    for model in models:
        for streams, figure, rate in _rates(model):
            if streams is not None and rate is not None:
                rates.add_metric([model.model_id, str(streams), figure], rate)
    yield rates
    times = [
        ([model.model_id, str(stage.stage), stage.node_id, figure], figures)
        for model in models
        for stage, figure, figures in _stage_times(model)
    ]
    yield from _families("stage", _STAGE_TIMES, ["model", "stage", "node", "figure"], times)


def _rates(model: ModelMetrics) -> Iterator[tuple[int | None, str, float | None]]:
    """Yield the number of streams, the kind of figure, and tokens per second."""
    speed, prediction = model.speed, model.prediction
    yield 1, "measured", speed.tokens_per_second
    yield speed.num_streams, "measured", speed.total_tokens_per_second
    if prediction is not None:
        yield 1, "predicted", prediction.tokens_per_second
        if prediction.num_streams > 1:
            yield prediction.num_streams, "predicted", prediction.total_tokens_per_second


def _stage_times(
    model: ModelMetrics,
) -> Iterator[tuple[StageMetrics, str, StageTimes | StagePrediction]]:
    predicted = () if model.prediction is None else model.prediction.stages
    for stage in model.stages:
        yield stage, "measured", stage.times
        if stage.stage < len(predicted):
            yield stage, "predicted", predicted[stage.stage]
