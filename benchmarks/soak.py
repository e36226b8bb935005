"""Streams without end on a cluster whose processes are killed all the time: METHODOLOGY, "Soak".

    python benchmarks/soak.py [--minutes 20] [--model demo] [--output benchmarks/results/soak.json]

A worker, an agent and the coordinator are killed in turn with ``kill -9``, every 5 to 10 seconds;
agents are started again 2 seconds later. Agent 0, a gateway without memory for stages, is never
killed: streams through it show what a client sees, and its memory what is kept. Other gateways die
under their clients, who send the same request to another agent, as clients do.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import psutil
from circumstances import circumstances
from command_line import documented_parser
from live_cluster import LiveAgent, LiveCluster, wait_until
from processes import memory_bytes, num_descriptors
from token_stream import Ask, TokenStream, stream_whole

MODEL_ID = "model"
CONTEXT_TOKENS = 1024
CACHE_TOKENS = 8192
NUM_STREAMS = 6
NUM_ASKS = 12
"""The number of different requests; their undisturbed answers are computed first."""
SEED = 11
GATEWAY_NODE_ID = "f" * 16
GATEWAY_MEMORY = "1M"
KILL_SECONDS = (5.0, 10.0)
RESTART_SECONDS = 2.0
SAMPLE_SECONDS = 2.0
MIN_GAP_SECONDS = 0.05
"""Shorter gaps are not recorded: a run has a million."""
SETTLE_SECONDS = 15.0
MIB = 2**20

_PROMPTS = (
    "Once upon a time",
    "The old boat",
    "The harbour at night was quiet. A small light went on in the old house. " * 3,
)
_REFUSED_PAUSE_SECONDS = 0.25
_READY_SECONDS = 120.0
_END_SECONDS = 1.0


class End(Enum):
    """How a request ended. Only a lost gateway may cut a stream."""

    WHOLE = "whole"
    WRONG = "wrong"
    FAILED = "failed"
    REFUSED = "refused"
    GATEWAY_LOST = "gateway_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as its client saw it; times count from the start of the soak."""

    client: int
    agent: int
    sent: float
    end: End
    ask: int
    first_token_seconds: float | None
    num_comments: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill, its time, and the longest gap in a stream from then until the next kill.

    ``is_felt``: it had a stage or coordinated. ``ready_seconds``: until agent 0 knew the deployment
    as ready at a higher epoch than ``epoch``; None if the next kill came first, or none was due.
    """

    at: float
    victim: str
    agent: int
    epoch: int
    is_felt: bool
    pause_seconds: float = 0.0
    ready_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Anonymous resident memory and open descriptors of an agent that has run for ``age`` s."""

    at: float
    agent: int
    pid: int
    age: float
    resident_bytes: int
    num_descriptors: int


@dataclass(slots=True)
class _Clients:
    """Streams on threads, one after another each, until ``over``."""

    cluster: LiveCluster
    asks: Sequence[Ask]
    expected: Sequence[TokenStream]
    started_at: float
    over: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)
    live: dict[int, tuple[LiveAgent, TokenStream]] = field(default_factory=dict)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """The end of each long gap between events of one stream, and its length."""

    def run(self, client: int) -> None:
        chance = random.Random(SEED + client)
        while not self.over.is_set():
            # Half of the clients stay with the gateway that lives on.
            agents = self.cluster.live()
            agent = agents[0] if client % 2 == 0 else chance.choice(agents)
            ask = chance.randrange(len(self.asks))
            with suppress(OSError, IndexError, ValueError):  # it has not said its port yet
                self._send(client, agent, agent.port, agent.pid, ask)
                continue
            time.sleep(_REFUSED_PAUSE_SECONDS)

    def _send(self, client: int, agent: LiveAgent, port: int, pid: int, ask: int) -> None:
        stream = TokenStream()
        self.live[client] = (agent, stream)
        stream.read(port, MODEL_ID, self.asks[ask])
        self.live.pop(client)
        self.gaps += [
            (after - self.started_at, after - before)
            for before, after in itertools.pairwise([stream.sent_at, *stream.times])
            if after - before > MIN_GAP_SECONDS
        ]
        was_lost = not stream.is_whole and _has_ended(agent, pid)
        end = self._end_of(stream, self.expected[ask], was_lost=was_lost)
        self.requests.append(
            Request(
                client=client,
                agent=agent.number,
                sent=stream.sent_at - self.started_at,
                end=end,
                ask=ask,
                first_token_seconds=stream.times[0] - stream.sent_at if stream.times else None,
                num_comments=stream.num_comments,
                error=stream.error[:300],
            )
        )
        if end in (End.REFUSED, End.GATEWAY_LOST):
            time.sleep(_REFUSED_PAUSE_SECONDS)

    @staticmethod
    def _end_of(stream: TokenStream, expected: TokenStream, *, was_lost: bool) -> End:
        so_far = len(stream.text)
        if stream.text != expected.text[:so_far] or (
            stream.logprobs != expected.logprobs[: len(stream.logprobs)]
        ):
            return End.WRONG
        if stream.is_whole:
            is_same = stream.text == expected.text and stream.logprobs == expected.logprobs
            return End.WHOLE if is_same else End.WRONG
        if was_lost:
            return End.GATEWAY_LOST
        return End.FAILED if stream.status == 200 else End.REFUSED


def _has_ended(agent: LiveAgent, pid: int) -> bool:
    """Return whether an agent ends in time after its connection: a process closes sockets first."""
    deadline = time.monotonic() + _END_SECONDS
    while agent.is_live and agent.pid == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class _Killer:
    """Kills processes in turn, and restarts agents."""

    def __init__(self, cluster: LiveCluster, started_at: float) -> None:
        self._cluster = cluster
        self._started_at = started_at
        self._chance = random.Random(SEED)
        self._turns = itertools.cycle(("worker", "agent", "coordinator"))
        self.num_skipped = 0

    def kill(self) -> tuple[Kill, LiveAgent | None]:
        """Kill the next one; the agent to start again, if it was one."""
        victim = next(self._turns)
        deployed = self._cluster.deployment(self._cluster.agents[0], MODEL_ID)
        epoch = deployed["epoch"]["number"] if deployed else 0
        nodes = {stage["node_id"] for stage in deployed["stages"]} if deployed else set()
        at = time.monotonic() - self._started_at
        mortal = [agent for agent in self._cluster.live() if agent.number != 0]
        if victim == "worker":
            workers = [(agent, pid) for agent in mortal for pid in agent.workers()]
            if workers:
                agent, pid = self._chance.choice(workers)
                with suppress(psutil.Error):
                    psutil.Process(pid).kill()
                killed = Kill(at=at, victim=victim, agent=agent.number, epoch=epoch, is_felt=True)
                return killed, None
            self.num_skipped += 1
        coordinator = deployed["epoch"]["coordinator"] if deployed else None
        chosen = [agent for agent in mortal if (agent.node_id == coordinator)]
        if victim != "coordinator" or not chosen:
            # Agent 0 may coordinate: then another agent is killed instead.
            self.num_skipped += victim == "coordinator"
            victim = "agent"
            chosen = [agent for agent in mortal if agent.node_id != coordinator]
        agent = self._chance.choice(chosen)
        agent.kill()
        is_felt = victim == "coordinator" or agent.node_id in nodes
        killed = Kill(at=at, victim=victim, agent=agent.number, epoch=epoch, is_felt=is_felt)
        return killed, agent


def main() -> None:
    """Soak, print a summary, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--agents", type=int, default=4, help="besides the gateway that lives on")
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--memory-limit", default="400M", help="of each agent")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    document: dict[str, object] = {"schema": "potluck.benchmark.soak/1", **circumstances()}
    with tempfile.TemporaryDirectory() as directory:
        document |= _soak(arguments, Path(directory))
    print(json.dumps({name: document[name] for name in ("summary", "leftovers")}, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(document) + "\n", encoding="utf-8")


def _soak(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    asks = [
        Ask(
            prompt=_PROMPTS[number % len(_PROMPTS)],
            max_tokens=arguments.tokens,
            seed=SEED + number,
            temperature=0.0 if number % 3 == 0 else 1.0,
        )
        for number in range(NUM_ASKS)
    ]
    with LiveCluster(directory, memory_limit=arguments.memory_limit) as cluster:
        cluster.start(0, memory_limit=GATEWAY_MEMORY, node_id=GATEWAY_NODE_ID)
        for number in range(1, arguments.agents + 1):
            cluster.start(number)
        cluster.await_members()
        options: dict[str, object] = {
            "context_tokens": CONTEXT_TOKENS,
            "cache_tokens": CACHE_TOKENS,
            "objective": "memory",
        }
        cluster.deploy(cluster.agents[1], arguments.model, MODEL_ID, **options)
        port = cluster.agents[0].port
        expected = [stream_whole(port, MODEL_ID, ask) for ask in asks]
        quiet = num_descriptors(cluster.agents[0].pid)
        clients = _Clients(cluster, asks, expected, time.monotonic())
        threads = [
            threading.Thread(target=clients.run, args=(number,)) for number in range(NUM_STREAMS)
        ]
        for thread in threads:
            thread.start()
        try:
            kills, samples, num_skipped = _disturb(cluster, clients, arguments.minutes * 60)
        finally:
            clients.over.set()
            for thread in threads:
                thread.join()
        wait_until(
            lambda: (cluster.deployment(cluster.agents[0], MODEL_ID) or {}).get("state") == "ready",
            within=_READY_SECONDS,
            what="the deployment is ready in the end",
        )
        time.sleep(SETTLE_SECONDS)
        samples += _sample(cluster, clients.started_at)
        at_rest = {
            "descriptors_of_the_gateway": [quiet, num_descriptors(cluster.agents[0].pid)],
            "workers": {agent.number: len(agent.workers()) for agent in cluster.live()},
            "stages": len((cluster.deployment(cluster.agents[0], MODEL_ID) or {})["stages"]),
        }
        left = cluster.close()
    kills = _with_pauses(kills, clients.gaps)
    summary = _summary(clients, kills, samples)
    return {
        "summary": {**summary, "num_turns_skipped": num_skipped, "at_rest": at_rest},
        "leftovers": asdict(left),
        "kills": list(map(asdict, kills)),
        "requests": [{**asdict(each), "end": each.end.value} for each in clients.requests],
        "memory_samples": list(map(asdict, samples)),
    }


def _disturb(
    cluster: LiveCluster, clients: _Clients, seconds: float
) -> tuple[list[Kill], list[MemorySample], int]:
    """Kill until the time is over; the last kill leaves time to recover from it."""
    chance = random.Random(SEED)
    killer = _Killer(cluster, clients.started_at)
    kills: list[Kill] = []
    samples: list[MemorySample] = []
    end = clients.started_at + seconds
    while (now := time.monotonic()) < end:
        until = now + chance.uniform(*KILL_SECONDS)
        kill, lost = killer.kill()
        ready: float | None = None
        next_sample = now
        restarting: threading.Thread | None = None
        while (now := time.monotonic()) < until:
            if lost is not None and now > clients.started_at + kill.at + RESTART_SECONDS:
                restarting = threading.Thread(target=cluster.start, args=(lost.number,))
                restarting.start()
                lost = None
            if now >= next_sample:
                samples += _sample(cluster, clients.started_at)
                next_sample = now + SAMPLE_SECONDS
            if ready is None and kill.is_felt:
                found = cluster.deployment(cluster.agents[0], MODEL_ID)
                if (
                    found is not None
                    and found["state"] == "ready"
                    and found["epoch"]["number"] > kill.epoch
                ):
                    ready = time.monotonic() - clients.started_at - kill.at
            time.sleep(0.1)
        if restarting is not None:
            restarting.join()
        kills.append(dataclasses.replace(kill, ready_seconds=ready))
        print(
            f"{kill.at:7.1f} s: {kill.victim} (agent {kill.agent}), ready after"
            f" {'—' if ready is None else f'{ready:.1f} s'}, requests so far"
            f" {dict(Counter(each.end.value for each in clients.requests))}",
            file=sys.stderr,
        )
    return kills, samples, killer.num_skipped


def _with_pauses(kills: Sequence[Kill], gaps: Sequence[tuple[float, float]]) -> list[Kill]:
    """Return the kills, each with the longest gap that overlaps the time until the next kill."""
    completed = []
    for kill, following in itertools.pairwise([*kills, None]):
        assert kill is not None
        end = following.at if following else float("inf")
        lengths = [length for at, length in gaps if at > kill.at and at - length < end]
        completed.append(dataclasses.replace(kill, pause_seconds=max(lengths, default=0.0)))
    return completed


def _sample(cluster: LiveCluster, started_at: float) -> list[MemorySample]:
    now = time.monotonic()
    return [
        MemorySample(
            at=now - started_at,
            agent=agent.number,
            pid=agent.pid,
            age=now - agent.started_at,
            resident_bytes=memory_bytes(agent.pid, "RssAnon"),
            num_descriptors=num_descriptors(agent.pid),
        )
        for agent in cluster.live()
    ]


def _summary(
    clients: _Clients, kills: Sequence[Kill], samples: Sequence[MemorySample]
) -> dict[str, Any]:
    ends = Counter(request.end.value for request in clients.requests)
    ready = [kill.ready_seconds for kill in kills if kill.ready_seconds is not None]
    errors = Counter(
        f"{request.end.value}: {request.error[:120]}"
        for request in clients.requests
        if request.end in (End.FAILED, End.REFUSED, End.WRONG)
    )
    return {
        "num_kills": dict(Counter(kill.victim for kill in kills)),
        "requests": {end.value: ends[end.value] for end in End},
        "num_comments": sum(request.num_comments for request in clients.requests),
        "pause_seconds": _spread([kill.pause_seconds for kill in kills]),
        "ready_seconds": _spread(ready),
        "not_ready_before_the_next_kill": sum(kill.is_felt for kill in kills) - len(ready),
        "first_token_seconds": _spread(
            [
                request.first_token_seconds
                for request in clients.requests
                if request.first_token_seconds is not None
            ]
        ),
        "memory_mib_of_the_gateway": _quarters(
            [sample.resident_bytes / MIB for sample in samples if sample.agent == 0]
        ),
        "descriptors_of_the_gateway": _quarters(
            [float(sample.num_descriptors) for sample in samples if sample.agent == 0]
        ),
        "memory_mib_of_others_by_age": _by_age(samples),
        "errors": dict(errors.most_common(10)),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "worst": max(values), "count": len(values)}


def _quarters(values: Sequence[float]) -> list[float]:
    """Return the medians of the quarters of a run, which show whether it is flat."""
    size = max(1, len(values) // 4)
    parts = [values[start : start + size] for start in range(0, 4 * size, size)]
    return [round(statistics.median(part), 1) for part in parts if part]


def _by_age(samples: Sequence[MemorySample]) -> dict[str, float]:
    """Return the median memory of agents that are killed, in MiB, by their age."""
    ages: dict[str, list[float]] = {}
    for sample in samples:
        if sample.agent != 0:
            decade = int(sample.age // 20) * 20
            ages.setdefault(f"{decade} s", []).append(sample.resident_bytes / MIB)
    return {age: round(statistics.median(values), 1) for age, values in ages.items()}


if __name__ == "__main__":
    main()
