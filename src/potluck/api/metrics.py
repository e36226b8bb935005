"""What ``/metrics`` shows, for Prometheus.

Requests and tokens are measured here, where clients see them; what the coordinators know is asked
of the gateway whenever somebody looks. Everything is in a registry of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from potluck.api.admission import Admission
from potluck.types.gateway import Gateway, ModelMetrics, ModelState, StageMetrics, StageTimes
from potluck.types.placement import StagePrediction

_FIRST_TOKEN_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
_BETWEEN_TOKENS_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
"""From a small model on a fast machine to a large one on slow boards, three a decade; between two
tokens a model may be loaded again."""


class ApiMetrics:
    """Counts requests and tokens. For one event loop."""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "potluck_http_requests",
            "Requests answered, by address and status; 499 for clients that went away",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self._prompt_tokens = Counter(
            "potluck_prompt_tokens",
            "Tokens of prompts",
            ["model"],
            registry=self._registry,
        )
        self._new_tokens = Counter(
            "potluck_generated_tokens",
            "Tokens that sequences were given",
            ["model"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "potluck_time_to_first_token_seconds",
            "From a request's whole body to its first token",
            ["model"],
            buckets=_FIRST_TOKEN_SECONDS,
            registry=self._registry,
        )
        self._between_tokens = Histogram(
            "potluck_time_between_tokens_seconds",
            "From a sequence's token to its next",
            ["model"],
            buckets=_BETWEEN_TOKENS_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_GatewayCollector(gateway, admission))

    def count_request(self, endpoint: str, status: int) -> None:
        """A request has been answered. ``endpoint`` is one of a few."""
        self._requests.labels(endpoint, str(status)).inc()

    def meter(self, model_id: str, started: float) -> RequestMeter:
        """What measures one request, that came at ``time.perf_counter()`` ``started``."""
        return RequestMeter(
            started,
            self._prompt_tokens.labels(model_id),
            self._new_tokens.labels(model_id),
            self._first_token.labels(model_id),
            self._between_tokens.labels(model_id),
        )

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)


class RequestMeter:
    """Measures one request."""

    def __init__(
        self,
        started: float,
        prompt_tokens: Counter,
        new_tokens: Counter,
        first_token: Histogram,
        between_tokens: Histogram,
    ) -> None:
        self._started = started
        self._prompt_tokens = prompt_tokens
        self._new_tokens = new_tokens
        self._first_token = first_token
        self._between_tokens = between_tokens
        self._last: dict[int, float] = {}

    def prompts(self, num_tokens: int) -> None:
        """The request's prompts have ``num_tokens`` together."""
        self._prompt_tokens.inc(num_tokens)

    def token(self, index: int) -> None:
        """The choice ``index`` was given a token now."""
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
        """Nothing: the gateway is not asked at the start."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All that is asked for when somebody looks."""
        yield GaugeMetricFamily(
            "potluck_http_requests_running",
            "Requests being answered",
            value=self._admission.num_running,
        )
        yield GaugeMetricFamily(
            "potluck_http_requests_queued",
            "Requests that wait for one of those to end",
            value=self._admission.num_queued,
        )
        ready = GaugeMetricFamily(
            "potluck_model_ready", "1 if the model can answer", labels=["model"]
        )
        for status in self._gateway.models():
            ready.add_metric([status.model_id], float(status.state is ModelState.READY))
        yield ready
        models = self._gateway.metrics()
        yield from _scheduler_families(models)
        yield from _prefix_families(models)
        yield from _state_families(models)
        yield from _recovery_families(models)
        yield from _stage_families(models)
        yield from _edge_families(models)
        yield from _speed_families(models)


def _scheduler_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    sequences = GaugeMetricFamily(
        "potluck_sequences", "Live sequences, running or waiting", labels=["model", "state"]
    )
    blocks = GaugeMetricFamily(
        "potluck_kv_blocks", "Blocks of the KV cache", labels=["model", "state"]
    )
    for model in models:
        sequences.add_metric([model.model_id, "running"], model.num_running)
        sequences.add_metric([model.model_id, "waiting"], model.num_waiting)
        blocks.add_metric([model.model_id, "used"], model.num_blocks - model.num_free_blocks)
        blocks.add_metric([model.model_id, "free"], model.num_free_blocks)
    yield sequences
    yield blocks


def _prefix_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "potluck_prefix_cache_blocks",
        "Free blocks of the KV cache that are kept for prompts that begin alike",
        labels=["model"],
    )
    for model in models:
        blocks.add_metric([model.model_id], model.num_kept_blocks)
    yield blocks
    for name, text, field in (
        ("admissions", "Times a sequence was given cache blocks", "num_admissions"),
        ("hits", "Times a part of its tokens was in the cache then", "num_hits"),
        ("saved_tokens", "Tokens that were not computed for that", "num_saved_tokens"),
        ("evictions", "Cached blocks that were given to other sequences", "num_evictions"),
        ("restored_tokens", "Tokens that were read from disk", "num_restored_tokens"),
        ("checkpoints", "Checkpoints made of states", "num_checkpoints"),
        ("checkpoint_hits", "Sequences that began with a checkpoint", "num_checkpoint_hits"),
        ("checkpoint_evictions", "Checkpoints that were given up", "num_checkpoint_evictions"),
        (
            "uncovered_tokens",
            "Tokens computed again because no checkpoint was after them",
            "num_uncovered_tokens",
        ),
    ):
        family = CounterMetricFamily(f"potluck_prefix_cache_{name}", text, labels=["model"])
        for model in models:
            family.add_metric([model.model_id], getattr(model.prefix, field))
        yield family


def _state_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """Of models with state: their slots, and what those take on all stages together."""
    slots = GaugeMetricFamily(
        "potluck_state_slots", "Slots for states of sequences", labels=["model", "state"]
    )
    memory = GaugeMetricFamily(
        "potluck_state_bytes",
        "Memory of those slots, on all stages together",
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


def _recovery_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    labels = ["model"]
    epoch = GaugeMetricFamily("potluck_model_epoch", "Number of the epoch in force", labels=labels)
    recoveries = CounterMetricFamily(
        "potluck_model_recoveries", "Times it was ready again after a loss", labels=labels
    )
    seconds = GaugeMetricFamily(
        "potluck_model_recovery_seconds",
        "From the last loss until it was ready again",
        labels=labels,
    )
    spares = GaugeMetricFamily(
        "potluck_model_spare_stages", "Stages that are held and not in use", labels=labels
    )
    moves = CounterMetricFamily(
        "potluck_model_moves",
        "Times it moved to a plan that was predicted to be faster",
        labels=labels,
    )
    gain = GaugeMetricFamily(
        "potluck_model_move_gain_ratio",
        "How much faster the plan of the last move was predicted to be (0.2: by a fifth)",
        labels=labels,
    )
    for model in models:
        moves.add_metric([model.model_id], model.num_moves)
        if model.last_gain is not None:
            gain.add_metric([model.model_id], model.last_gain)
        epoch.add_metric([model.model_id], model.epoch)
        recoveries.add_metric([model.model_id], model.num_recoveries)
        spares.add_metric([model.model_id], model.num_spares)
        if model.recovery_seconds is not None:
            seconds.add_metric([model.model_id], model.recovery_seconds)
    yield epoch
    yield recoveries
    yield seconds
    yield spares
    yield moves
    yield gain


def _stage_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    labels = ["model", "stage", "node"]
    dropped = CounterMetricFamily(
        "potluck_stage_dropped_frames", "Frames that came late or twice", labels=labels
    )
    slowdown = GaugeMetricFamily(
        "potluck_stage_slowdown",
        "How many times as long as before the stage's steps take lately",
        labels=labels,
    )
    steps = CounterMetricFamily("potluck_stage_steps", "Steps computed", labels=labels)
    seconds = CounterMetricFamily(
        "potluck_stage_compute_seconds", "Time spent computing steps", labels=labels
    )
    cpu_seconds = CounterMetricFamily(
        "potluck_stage_cpu_seconds",
        "CPU time that the thread which computes steps spent on them",
        labels=labels,
    )
    memory = GaugeMetricFamily(
        "potluck_stage_memory_bytes", "Memory that the stage's process holds", labels=labels
    )
    experts = CounterMetricFamily(
        "potluck_stage_experts",
        "Matrices of mapped experts that were used, by where they were",
        labels=[*labels, "in"],
    )
    for model in models:
        for stage in model.stages:
            values = [model.model_id, str(stage.stage), stage.node_id]
            use = stage.experts
            if use.num_used:
                experts.add_metric([*values, "memory"], use.num_in_memory)
                experts.add_metric([*values, "file"], use.num_used - use.num_in_memory)
            steps.add_metric(values, stage.num_steps)
            seconds.add_metric(values, stage.compute_seconds)
            cpu_seconds.add_metric(values, stage.cpu_seconds)
            memory.add_metric(values, stage.memory_bytes)
            dropped.add_metric(values, stage.num_dropped_frames)
            if stage.slowdown is not None:
                slowdown.add_metric(values, stage.slowdown)
    yield steps
    yield seconds
    yield cpu_seconds
    yield memory
    yield dropped
    yield slowdown
    yield experts


def _edge_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    labels = ["model", "edge", "sender", "receiver"]
    frames = CounterMetricFamily("potluck_edge_frames", "Frames sent", labels=labels)
    num_bytes = CounterMetricFamily("potluck_edge_bytes", "Bytes sent", labels=labels)
    seconds = CounterMetricFamily("potluck_edge_send_seconds", "Time spent sending", labels=labels)
    for model in models:
        for edge in model.edges:
            values = [model.model_id, str(edge.edge), edge.sender, edge.receiver]
            frames.add_metric(values, edge.num_frames)
            num_bytes.add_metric(values, edge.num_bytes)
            seconds.add_metric(values, edge.send_seconds)
    yield frames
    yield num_bytes
    yield seconds


def _speed_families(models: Sequence[ModelMetrics]) -> Iterator[Metric]:
    """What was predicted of the plans in force beside what was measured lately."""
    rates = GaugeMetricFamily(
        "potluck_model_tokens_per_second",
        "Tokens per second of one stream, or of several together",
        labels=["model", "streams", "figure"],
    )
    for model in models:
        for streams, figure, rate in _rates(model):
            if streams is not None and rate is not None:
                rates.add_metric([model.model_id, str(streams), figure], rate)
    yield rates
    for name, text, field in (
        ("decode", "A step of one sequence", "decode_seconds"),
        ("loaded_decode", "A step when the plan's streams decode", "loaded_seconds"),
        ("prefill_token", "A token of a prompt's longest chunks", "prefill_seconds_per_token"),
    ):
        family = GaugeMetricFamily(
            f"potluck_stage_{name}_seconds",
            f"{text}, within the stage's engine",
            labels=["model", "stage", "node", "figure"],
        )
        for model in models:
            for stage, figure, times in _stage_times(model):
                seconds = getattr(times, field)
                if seconds is not None:
                    values = [model.model_id, str(stage.stage), stage.node_id, figure]
                    family.add_metric(values, seconds)
        yield family


def _rates(model: ModelMetrics) -> Iterator[tuple[int | None, str, float | None]]:
    """The number of streams, which figure it is, and tokens per second."""
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
