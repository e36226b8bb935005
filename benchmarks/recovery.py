"""Measure the time from ``kill -9`` to the client's next token: METHODOLOGY, "Recovery".

    python benchmarks/recovery.py [--shapes 100M 1B] [--agents 2 3 4] [--trials 20] [--output FILE]
    python benchmarks/recovery.py --cost [--against PYTHON] [--output FILE]

Models are made in --work and used again; ``demo`` is a shape, too. Each trial streams a sampled
answer through an agent that lives on, kills a worker, an agent or the coordinator in the midst of
it, and compares text and log-probabilities with those of an undisturbed run of the same seed.
Killed agents are started again after each trial. ``--cost`` kills nothing and measures tokens per
second; with ``--against``, the Python of another checkout's environment, in turns with that one.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from circumstances import circumstances
from command_line import documented_parser
from live_cluster import Document, LiveAgent, LiveCluster, wait_until
from model_shapes import SHAPES
from random_hugging_face import write_hugging_face
from shapes import made
from token_stream import Ask, TokenStream, random_prompt, stream_whole, together

MODEL_ID = "model"
CONTEXT_TOKENS = 512
CACHE_TOKENS = 4096
SEED = 7

_WORK = Path(__file__).resolve().parents[1] / "build" / "recovery"
_LOOK_SECONDS = 0.01
"""The interval at which a survivor is observed: the resolution of detection and loading."""
_AGAIN_SECONDS = 0.05
"""The interval between the retries of a client whose stream has failed."""
_GIVE_UP_SECONDS = 120.0


class Victim(Enum):
    """The process that is killed."""

    WORKER = "worker"
    AGENT = "agent"
    COORDINATOR = "coordinator"


@dataclass(slots=True, kw_only=True)
class Trial:
    """One kill, from which seconds are counted unless noted otherwise; None was not observed.

    ``next_token_seconds`` is of the stream if that ``is_continued``, or else of a client that sent
    its request again. ``detection_seconds``: until a survivor's state left ready or it logged a
    line. ``loading_seconds``: from there until it was ready. ``replay_seconds``: from there to the
    next token.
    """

    shape: str
    num_agents: int
    victim: str
    num_tokens_before: int
    usual_gap_seconds: float = 0.0
    is_continued: bool = False
    is_identical: bool = False
    next_token_seconds: float | None = None
    detection_seconds: float | None = None
    loading_seconds: float | None = None
    replay_seconds: float | None = None
    num_comments: int = 0
    num_stages: tuple[int, int] = (0, 0)
    epochs: tuple[int, int] = (0, 0)
    num_workers_kept: int = 0
    num_workers_left: int = 0
    error: str = ""
    log: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSample:
    """Concurrent streams on a cluster without failures."""

    checkout: str
    shape: str
    num_agents: int
    num_streams: int
    tokens_per_second: float


def main() -> None:
    """Measure, print a summary, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=["demo", *SHAPES], default=["100M", "1B"])
    parser.add_argument("--agents", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument(
        "--victims",
        nargs="+",
        choices=[victim.value for victim in Victim],
        default=[victim.value for victim in Victim],
    )
    parser.add_argument("--trials", type=int, default=20, help="of each combination")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--work", type=Path, default=_WORK, help="folder of the models")
    parser.add_argument("--cost", action="store_true", help="tokens per second, without kills")
    parser.add_argument("--against", metavar="PYTHON", help="of another checkout, for --cost")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 6], help="for --cost")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    document: dict[str, object] = {"schema": "potluck.benchmark.recovery/1", **circumstances()}
    if arguments.cost:
        samples = list(_measure_costs(arguments))
        document |= {"costs": _summarize_costs(samples), "cost_samples": list(map(asdict, samples))}
    else:
        trials: list[Trial] = []
        left: list[str] = []
        for shape in arguments.shapes:
            for num_agents in arguments.agents:
                trials += _measure_recoveries(arguments, shape, num_agents, left)
        document |= {
            "summary": _summarize(trials),
            "leftovers": left,
            "trials": list(map(asdict, trials)),
        }
    if arguments.output:
        arguments.output.write_text(json.dumps(document) + "\n", encoding="utf-8")


# Recovery.


def _measure_recoveries(
    arguments: argparse.Namespace, shape: str, num_agents: int, left: list[str]
) -> Iterator[Trial]:
    """Run all trials on one cluster."""
    model = _model(shape, arguments.work)
    with tempfile.TemporaryDirectory() as directory, LiveCluster(Path(directory)) as cluster:
        for number in range(num_agents):
            cluster.start(number)
        cluster.await_members()
        bench = _Bench(cluster, model, arguments.spares)
        chance = random.Random(SEED)
        prompt = random_prompt(chance, arguments.prompt)
        ask = Ask(prompt=prompt, max_tokens=arguments.tokens, seed=SEED)
        expected: TokenStream | None = None
        for victim in map(Victim, arguments.victims):
            for number in range(arguments.trials):
                trial = Trial(
                    shape=shape,
                    num_agents=num_agents,
                    victim=victim.value,
                    num_tokens_before=chance.randrange(4, max(5, arguments.tokens // 2)),
                )
                try:
                    bench.prepare(victim)
                    if expected is None:
                        expected = stream_whole(bench.gateway.port, MODEL_ID, ask)
                    bench.run(trial, victim, number, ask, expected)
                    bench.restore()
                except RuntimeError as error:
                    trial.error = trial.error or str(error)
                    bench.start_over()
                _print_trial(trial)
                yield trial
        found = cluster.close()
        left += [*found.processes, *found.files]


class _Bench:
    """A cluster with one deployment over all its agents. The client is at agent 0."""

    def __init__(self, cluster: LiveCluster, model: str, num_spares: int) -> None:
        self._cluster = cluster
        self._model = model
        self._options: dict[str, object] = {
            "context_tokens": CONTEXT_TOKENS,
            "cache_tokens": CACHE_TOKENS,
            "objective": "memory",
            **({"num_spares": num_spares} if num_spares else {}),
        }

    @property
    def gateway(self) -> LiveAgent:
        """The agent that the client is connected to, which is not killed."""
        return self._cluster.agents[0]

    def prepare(self, victim: Victim) -> None:
        """Have the model on all agents, with the coordinator that ``victim`` asks for.

        Of two agents the client's own coordinates when the other is killed as an agent.
        """
        agents = self._cluster.agents
        is_pair = len(agents) == 2 and victim is Victim.AGENT
        coordinator = agents[0] if is_pair else agents[1]
        deployed = self._cluster.deployment(self.gateway, MODEL_ID)
        if deployed is not None:
            if (
                deployed["state"] == "ready"
                and len({stage["node_id"] for stage in deployed["stages"]}) == len(agents)
                and deployed["epoch"]["coordinator"] == coordinator.node_id
            ):
                return
            self.gateway.ask("undeploy", name=MODEL_ID)
        deployed = self._cluster.deploy(coordinator, self._model, MODEL_ID, **self._options)
        if len(deployed["stages"]) < len(agents):
            raise RuntimeError(f"{len(deployed['stages'])} stages for {len(agents)} agents")

    def run(
        self, trial: Trial, victim: Victim, number: int, ask: Ask, expected: TokenStream
    ) -> None:
        """Stream, kill, and fill in ``trial``."""
        before = self._cluster.await_ready(self.gateway, MODEL_ID)
        workers = {pid for agent in self._cluster.live() for pid in agent.workers()}
        kill = self._victim(victim, number, before)
        stream = TokenStream()
        reading = threading.Thread(target=stream.read, args=(self.gateway.port, MODEL_ID, ask))
        reading.start()
        wait_until(
            lambda: len(stream.times) >= trial.num_tokens_before or stream.ended_at is not None,
            within=_GIVE_UP_SECONDS,
            what="the stream has begun",
        )
        trial.usual_gap_seconds = _median_gap(stream.times)
        survivors = [agent for agent in self._cluster.live() if agent is not kill]
        with _watching(self.gateway, survivors) as watch:
            killed_at = time.monotonic()
            kill.kill()
            reading.join(_GIVE_UP_SECONDS)
            again = stream
            if stream.error:
                trial.error = stream.error
                again = self._send_again(ask)
        trial.num_comments = stream.num_comments
        trial.is_continued = stream.is_whole
        trial.is_identical = again.is_whole and (
            (again.text, again.logprobs) == (expected.text, expected.logprobs)
        )
        next_at = _next_token(stream.times if trial.is_continued else again.times[:1], killed_at)
        trial.next_token_seconds = None if next_at is None else next_at - killed_at
        watch.fill(trial, killed_at, next_at)
        after = self._cluster.deployment(self.gateway, MODEL_ID) or before
        now = {pid for agent in self._cluster.live() for pid in agent.workers()}
        gone = {kill.pid} if isinstance(kill, psutil.Process) else set()
        trial.num_workers_kept = len(workers & now - gone)
        trial.num_workers_left = len(now - workers)
        trial.num_stages = (len(before["stages"]), len(after["stages"]))
        trial.epochs = (before["epoch"]["number"], after["epoch"]["number"])

    def restore(self) -> None:
        """Start what was killed again."""
        for agent in self._cluster.agents.values():
            if not agent.is_live:
                self._cluster.start(agent.number)
        self._cluster.await_members()
        self._cluster.await_ready(self.gateway, MODEL_ID)

    def start_over(self) -> None:
        """Restart all agents, after a trial that went wrong."""
        for agent in self._cluster.live():
            agent.kill()
        for number in list(self._cluster.agents):
            self._cluster.start(number)
        self._cluster.await_members()

    def _victim(
        self, victim: Victim, number: int, deployed: Document
    ) -> LiveAgent | psutil.Process:
        """Choose each stage's worker in turn, or an agent that neither streams nor coordinates."""
        agents = self._cluster.agents
        if victim is Victim.WORKER:
            stage = deployed["stages"][number % len(deployed["stages"])]
            worker, *_ = self._cluster.by_node(stage["node_id"]).workers()
            return psutil.Process(worker)
        if victim is Victim.COORDINATOR:
            return self._cluster.by_node(deployed["epoch"]["coordinator"])
        return agents[len(agents) - 1]

    def _send_again(self, ask: Ask) -> TokenStream:
        """Retry like a persistent client, and return the final answer."""
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while True:
            stream = TokenStream()
            stream.read(self.gateway.port, MODEL_ID, ask)
            if stream.is_whole or time.monotonic() > deadline:
                return stream
            time.sleep(_AGAIN_SECONDS)


@dataclass(slots=True)
class _Watch:
    """A recovery as seen from outside: readiness at an agent, and new lines in logs."""

    readiness: list[tuple[float, bool]] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)

    def fill(self, trial: Trial, killed_at: float, next_at: float | None) -> None:
        """Split the time to the next token."""
        unready = [at for at, is_ready in self.readiness if not is_ready and at > killed_at]
        logged = [at for at, _ in self.lines if at > killed_at]
        trial.log = [line for _, line in self.lines][:8]
        signs = sorted([*unready[:1], *logged[:1]])
        if next_at is None or not signs or signs[0] > next_at:
            return
        trial.detection_seconds = signs[0] - killed_at
        ready = [at for at, is_ready in self.readiness if is_ready and unready and at > unready[0]]
        if ready:
            ready_at = min(ready[0], next_at)  # a look later than the token it preceded
            trial.loading_seconds = ready_at - signs[0]
            trial.replay_seconds = next_at - ready_at


@contextmanager
def _watching(gateway: LiveAgent, survivors: Sequence[LiveAgent]) -> Iterator[_Watch]:
    watch = _Watch()
    over = threading.Event()
    ends = {agent.number: agent.log.stat().st_size for agent in survivors}

    def look_at_logs(now: float) -> None:
        for agent in survivors:
            if agent.log.stat().st_size > ends[agent.number]:
                with agent.log.open("rb") as file:
                    file.seek(ends[agent.number])
                    added = file.read()
                ends[agent.number] += len(added)
                for line in added.decode("utf-8", "replace").splitlines():
                    watch.lines.append((now, f"agent {agent.number}: {line}"))

    def look() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
        while not over.wait(_LOOK_SECONDS):
            try:
                connection.request("GET", "/health/ready")
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()  # a request on it would fail for ever
            else:
                is_ready = answer.status == http.HTTPStatus.OK
                if not watch.readiness or watch.readiness[-1][1] != is_ready:
                    watch.readiness.append((time.monotonic(), is_ready))
            look_at_logs(time.monotonic())
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def _next_token(times: Sequence[float], killed_at: float) -> float | None:
    """Return the end of the longest gap after the kill: tokens in flight then still arrive."""
    later = [
        (at - before, at)
        for before, at in zip([killed_at, *times], times, strict=False)
        if at > killed_at
    ]
    return max(later)[1] if later else None


def _median_gap(times: Sequence[float]) -> float:
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(gaps) if gaps else 0.0


def _summarize(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the median and the worst of each combination."""
    groups: dict[tuple[str, int, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.shape, trial.num_agents, trial.victim), []).append(trial)
    rows = []
    for (shape, num_agents, victim), group in groups.items():
        row: dict[str, Any] = {
            "shape": shape,
            "num_agents": num_agents,
            "victim": victim,
            "num_trials": len(group),
            "num_continued": sum(trial.is_continued for trial in group),
            "num_identical": sum(trial.is_identical for trial in group),
        }
        for name in ("next_token", "detection", "loading", "replay"):
            values = [getattr(trial, f"{name}_seconds") for trial in group]
            seen = [value for value in values if value is not None]
            row[f"{name}_seconds"] = (
                {"median": statistics.median(seen), "worst": max(seen)} if seen else None
            )
        rows.append(row)
        print(
            f"{shape:5} {num_agents} agents {victim:11} "
            + "  ".join(
                f"{name} {seen['median']:.2f}/{seen['worst']:.2f} s"
                for name in ("next_token", "detection", "loading", "replay")
                if (seen := row[f"{name}_seconds"])
            )
            + f"  continued {row['num_continued']}, identical {row['num_identical']}"
            f" of {row['num_trials']}"
        )
    return rows


def _print_trial(trial: Trial) -> None:
    def seconds(value: float | None) -> str:
        return "—" if value is None else f"{value:.2f}"

    print(
        f"{trial.shape} {trial.num_agents} agents, {trial.victim}:"
        f" next token {seconds(trial.next_token_seconds)} s"
        f" (detection {seconds(trial.detection_seconds)}, loading"
        f" {seconds(trial.loading_seconds)}, replay {seconds(trial.replay_seconds)});"
        f" workers kept {trial.num_workers_kept}, new {trial.num_workers_left};"
        f" {'continued' if trial.is_continued else 'FAILED: ' + trial.error[:100]}"
        f"{'' if trial.is_identical else ', NOT IDENTICAL'}",
        file=sys.stderr,
    )


# The cost while nothing fails.


def _measure_costs(arguments: argparse.Namespace) -> Iterator[CostSample]:
    pythons = {"this": sys.executable}
    if arguments.against:
        pythons["other"] = arguments.against
    for shape in arguments.shapes:
        model = _model(shape, arguments.work)
        for num_agents in arguments.agents:
            with ExitStack() as opened:
                clusters = {
                    name: opened.enter_context(_serving(python, model, num_agents))
                    for name, python in pythons.items()
                }
                for number in range(arguments.trials + 1):  # the first round warms up
                    for num_streams in arguments.streams:
                        for name, cluster in clusters.items():
                            rate = _rate(cluster, num_streams, arguments.prompt, arguments.tokens)
                            if number > 0:
                                yield CostSample(
                                    checkout=name,
                                    shape=shape,
                                    num_agents=num_agents,
                                    num_streams=num_streams,
                                    tokens_per_second=rate,
                                )


@contextmanager
def _serving(python: str, model: str, num_agents: int) -> Iterator[LiveCluster]:
    with (
        tempfile.TemporaryDirectory() as directory,
        LiveCluster(Path(directory), python=python) as cluster,
    ):
        for number in range(num_agents):
            cluster.start(number)
        cluster.await_members()
        _Bench(cluster, model, 0).prepare(Victim.WORKER)
        yield cluster


def _rate(cluster: LiveCluster, num_streams: int, num_prompt: int, num_new: int) -> float:
    """Return the tokens per second of all streams, without the first token of each."""
    chance = random.Random(SEED)
    streams = [TokenStream() for _ in range(num_streams)]
    port = cluster.agents[0].port
    calls = []
    for number, stream in enumerate(streams):
        prompt = random_prompt(chance, num_prompt)
        ask = Ask(prompt=prompt, max_tokens=num_new, seed=number, has_logprobs=False)
        calls.append(partial(stream.read, port, MODEL_ID, ask))
    together(calls)
    for stream in streams:
        if not stream.is_whole:
            raise RuntimeError(f"a stream failed: {stream.status} {stream.error}")
    first = min(stream.times[0] for stream in streams)
    last = max(stream.times[-1] for stream in streams)
    return num_streams * (num_new - 1) / (last - first)


def _summarize_costs(samples: Sequence[CostSample]) -> list[dict[str, Any]]:
    """Return medians, and the ratio to the other checkout in the same round."""
    groups: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for sample in samples:
        key = (sample.shape, sample.num_agents, sample.num_streams)
        of_checkout = groups.setdefault(key, {}).setdefault(sample.checkout, [])
        of_checkout.append(sample.tokens_per_second)
    rows = []
    for (shape, num_agents, num_streams), rates in groups.items():
        row: dict[str, Any] = {
            "shape": shape,
            "num_agents": num_agents,
            "num_streams": num_streams,
            "tokens_per_second": {name: statistics.median(each) for name, each in rates.items()},
        }
        if "other" in rates:
            ratios = [a / b for a, b in zip(rates["this"], rates["other"], strict=True)]
            row["ratio"] = {
                "median": statistics.median(ratios),
                "range": (min(ratios), max(ratios)),
            }
        rows.append(row)
        print(json.dumps(row))
    return rows


def _model(shape: str, work: Path) -> str:
    """Return MODEL; create it if it is missing."""
    if shape == "demo":
        return shape
    folder = work / shape

    def write(unfinished: Path) -> None:
        print(f"making a model of shape {shape} in {folder}", file=sys.stderr)
        write_hugging_face(SHAPES[shape], unfinished, "BF16")

    return str(made(folder, write).resolve())


if __name__ == "__main__":
    main()
