"""Measure what serving costs beyond computing: ``METHODOLOGY.md``, "Serving".

    python benchmarks/shapes.py Llama-3.2-1B /tmp/1b.gguf --type Q4_0
    python benchmarks/serving.py OUT.json /tmp/1b.gguf [MODEL …] [--cores 1 2] [--streams 1 8]

For each model and number of cores, an agent serves the model over HTTP, and ``potluck bench``
measures the same engine with as many threads on the same cores, in turn. With one core the client
has another one; with two it shares them.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from circumstances import write_result
from command_line import documented_parser
from live_cluster import LiveAgent, LiveCluster
from processes import scheduled_seconds
from token_stream import joint_rate, random_prompt

SCHEMA = "potluck.benchmark.serving/1"
MODEL_ID = "model"
PROMPT_TOKENS = 32
SAMPLINGS: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
}
AIMS = {"one stream, 1B": 0.98, "eight streams, 1B": 0.97, "135M": 0.85}
_MAX_SEEDS = 50
_SILENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One round of streams. All seconds are of CPU time and per 1,000 tokens, of whole processes;
    ``core`` is that of the worker's thread that computes, within the engine. The engine's other
    threads run for as long.
    """

    model: str
    cores: int
    streams: int
    sampling: str
    tokens_per_second: float
    agent_cpu: float
    worker_cpu: float
    core: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The results of ``potluck bench`` for comparison."""

    model: str
    cores: int
    streams: int
    sampling: str
    tokens_per_second: float


@dataclass(slots=True)
class Stream:
    """A client's connection. ``times`` are those of its events with text."""

    connection: socket.socket
    times: list[float] = field(default_factory=list)
    received: bytes = b""


class ShortAnswerError(Exception):
    """The model ended its answer early: other prompts are needed."""


def main() -> None:
    """Measure, print medians, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    served: list[Served] = []
    computed: list[Computed] = []
    for model in arguments.models:
        for num_cores in arguments.cores:
            setting = _Setting(model.resolve(), num_cores, arguments.tokens, arguments.rounds)
            for one, other in setting.measure(arguments.streams):
                served += one
                computed += other
    rows = _rows(served, computed)
    for row in rows:
        print(
            f"{row['model']:32} {row['cores']} cores {row['streams']:2} streams"
            f" {row['sampling']:8} {row['tokens_per_second']:8.1f} tokens/s"
            f"   {row['ratio']:.3f} of the engine ({row['ratio_range'][0]:.3f} to"
            f" {row['ratio_range'][1]:.3f})   CPU s per 1,000 tokens: agent"
            f" {row['agent_cpu']:.3f}, worker beside the core {row['worker_beside_core']:.3f}"
        )
    results = {
        "aims": AIMS,
        "medians": rows,
        "served": [asdict(each) for each in served],
        "computed": [asdict(each) for each in computed],
    }
    write_result(arguments.output, SCHEMA, results)


class _Setting:
    """A model on a number of cores."""

    def __init__(self, model: Path, num_cores: int, num_tokens: int, num_rounds: int) -> None:
        self._model = model
        self._num_cores = num_cores
        self._num_tokens = num_tokens
        self._num_rounds = num_rounds
        self._own_cores = sorted(os.sched_getaffinity(0))

    def measure(self, streams: Sequence[int]) -> list[tuple[list[Served], list[Computed]]]:
        """Serve and compute in turn, for each number of streams."""
        cores = self._own_cores[: self._num_cores]
        core = cores[0] if len(cores) == 1 else None
        with tempfile.TemporaryDirectory() as directory, LiveCluster(Path(directory)) as cluster:
            agent = cluster.start(0, core=core, num_threads=self._num_cores)
            cluster.deploy(agent, str(self._model), MODEL_ID, context_tokens=512)
            if core is not None:
                os.sched_setaffinity(0, set(self._own_cores) - {core} or {core})
            try:
                return [self._rounds(agent, each, cores) for each in streams]
            finally:
                os.sched_setaffinity(0, set(self._own_cores))

    def _rounds(
        self, agent: LiveAgent, num_streams: int, cores: Sequence[int]
    ) -> tuple[list[Served], list[Computed]]:
        served: list[Served] = []
        computed: list[Computed] = []
        seeds = {name: self._seed(agent, num_streams, name) for name in SAMPLINGS}
        for _ in range(self._num_rounds):
            for name, seed in seeds.items():
                served.append(self._serve(agent, num_streams, name, seed))
            computed += self._compute(num_streams, cores)
        return served, computed

    def _seed(self, agent: LiveAgent, num_streams: int, sampling: str) -> int:
        """Find a seed whose answers do not end early. This also warms up."""
        for seed in range(_MAX_SEEDS):
            try:
                self._serve(agent, num_streams, sampling, seed)
            except ShortAnswerError:
                continue
            return seed
        raise RuntimeError("the model ends all answers early")

    def _serve(self, agent: LiveAgent, num_streams: int, sampling: str, seed: int) -> Served:
        (worker,) = agent.workers()
        before = _used_seconds(agent, worker)
        bodies = [
            {
                "model": MODEL_ID,
                "prompt": random_prompt(random.Random(seed * 1000 + index), PROMPT_TOKENS),
                "max_tokens": self._num_tokens,
                "seed": index,
                "stream": True,
                "stream_options": {"include_usage": True},
                **SAMPLINGS[sampling],
            }
            for index in range(num_streams)
        ]
        rate = _rate(_read(agent.port, bodies), self._num_tokens)
        after = _used_seconds(agent, worker)
        per_thousand = 1000 / (num_streams * self._num_tokens)
        used = [per_thousand * (end - start) for start, end in zip(before, after, strict=True)]
        return Served(
            model=self._model.name,
            cores=self._num_cores,
            streams=num_streams,
            sampling=sampling,
            tokens_per_second=rate,
            agent_cpu=used[0],
            worker_cpu=used[1],
            core=used[2],
        )

    def _compute(self, num_streams: int, cores: Sequence[int]) -> list[Computed]:
        command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", "potluck"]
        command += ["bench", str(self._model), "--json", "--repeats", "1", "--prompt", "1"]
        command += ["--depth", str(PROMPT_TOKENS), "--decode", str(self._num_tokens)]
        command += ["--sequences", str(num_streams), "--threads", str(self._num_cores)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        document = json.loads(done.stdout)
        rates = {
            "greedy": document["decode_tokens_per_second"],
            "sampled": document["sampled_tokens_per_second"],
        }
        return [
            Computed(
                model=self._model.name,
                cores=self._num_cores,
                streams=num_streams,
                sampling=name,
                tokens_per_second=statistics.median(each),
            )
            for name, each in rates.items()
        ]


def _read(port: int, bodies: Sequence[Mapping[str, object]]) -> list[Stream]:
    """Ask all at once, and note when events come: one thread that parses nothing meanwhile."""
    selector = selectors.DefaultSelector()
    streams = []
    for body in bodies:
        data = json.dumps(body).encode()
        stream = Stream(socket.create_connection(("127.0.0.1", port), _SILENCE_SECONDS))
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        stream.connection.sendall(head.encode() + data)
        selector.register(stream.connection, selectors.EVENT_READ, stream)
        streams.append(stream)
    while selector.get_map():
        for key, _ in selector.select(_SILENCE_SECONDS):
            stream = key.data
            data = stream.connection.recv(1 << 16)
            now = time.perf_counter()
            stream.received += data
            stream.times += [now] * data.count(b'"text":"')
            if not data:
                selector.unregister(stream.connection)
                stream.connection.close()
    return streams


def _rate(streams: Sequence[Stream], num_tokens: int) -> float:
    """Return the tokens per second of all streams together, while all of them decode."""
    for stream in streams:
        if b'"completion_tokens":%d' % num_tokens not in stream.received:
            if b'"finish_reason":"stop"' in stream.received:
                raise ShortAnswerError
            raise RuntimeError(stream.received[-1000:].decode(errors="replace"))
    return joint_rate([stream.times for stream in streams], num_tokens)


def _used_seconds(agent: LiveAgent, worker: int) -> tuple[float, float, float]:
    """Return the CPU time of the agent, of its worker, and of the worker's computing thread."""
    own, its = (scheduled_seconds(pid)[0] for pid in (agent.pid, worker))
    return own, its, _core_seconds(agent.port)


def _core_seconds(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SILENCE_SECONDS)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    name = "potluck_stage_cpu_seconds_total{"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def _rows(served: Sequence[Served], computed: Sequence[Computed]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int, int, str], tuple[list[Served], list[Computed]]] = {}
    for each in served:
        key = (each.model, each.cores, each.streams, each.sampling)
        groups.setdefault(key, ([], []))[0].append(each)
    for other in computed:
        groups[other.model, other.cores, other.streams, other.sampling][1].append(other)
    rows = []
    for (model, cores, streams, sampling), (mine, its) in groups.items():
        ratios = [
            one.tokens_per_second / other.tokens_per_second
            for one, other in zip(mine, its, strict=True)
        ]
        rows.append(
            {
                "model": model,
                "cores": cores,
                "streams": streams,
                "sampling": sampling,
                "tokens_per_second": statistics.median(each.tokens_per_second for each in mine),
                "engine_tokens_per_second": statistics.median(
                    each.tokens_per_second for each in its
                ),
                "ratio": statistics.median(ratios),
                "ratio_range": (min(ratios), max(ratios)),
                "agent_cpu": statistics.median(each.agent_cpu for each in mine),
                "worker_beside_core": statistics.median(
                    each.worker_cpu - each.core * cores for each in mine
                ),
            }
        )
    return rows


if __name__ == "__main__":
    main()
