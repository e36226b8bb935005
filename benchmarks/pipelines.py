"""Find what limits several streams over two agents: ``benchmarks/METHODOLOGY.md``, "Pipelines".

    python benchmarks/shapes.py 1B /tmp/1b.gguf --type Q4_K
    python benchmarks/pipelines.py /tmp/1b.gguf [--output benchmarks/results/pipelines.json]

A cluster of one agent and a cluster of two agents serve the same model on loopback, each agent and
its worker bound to one core with one thread, and are asked in turn. Beside the rates, every round
has what each stage did with its time, and what each process took of its core. With ``--before
PYTHON`` two agents of another version of Potluck, which that interpreter imports, are asked too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from circumstances import write_result
from command_line import documented_parser
from live_cluster import WORKER_MODULE, LiveAgent, divided_among, own_cores
from model_shapes import weights_bytes
from processes import scheduled_seconds
from token_stream import NO_END, random_prompt

MODEL_ID = "model"
SEED = 1
_STREAM_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one process on its core: computing, and waiting for the core to be free."""

    process: str
    cpu_seconds: float
    wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """The times of one stage in a round. ``idle_seconds``: it had no step, or was receiving one."""

    stage: int
    num_steps: int
    compute_seconds: float
    send_seconds: float
    idle_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One request per stream, all at once.

    ``decode_tokens_per_second`` is of the time in which all streams decode, and
    ``total_tokens_per_second`` from the first request to the last event, prompts not counted.
    """

    system: str
    num_stages: int
    num_streams: int
    decode_tokens_per_second: float
    total_tokens_per_second: float
    first_token_seconds: float
    seconds: float
    stages: tuple[StageTimes, ...]
    processes: tuple[Times, ...]
    texts: tuple[str, ...] = field(repr=False)


def main() -> None:
    """Start both, ask in turn, print ratios and shares, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--before", metavar="PYTHON", help="interpreter with another version")
    parser.add_argument(
        "--nice", type=int, default=0, help="of each agent's autogroup, on a machine that is in use"
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rounds: list[Round] = []
    engine = _engine_alone(arguments)
    with ExitStack() as opened:
        served = [
            ("potluck", opened.enter_context(_cluster(arguments, num, sys.executable)))
            for num in arguments.stages
        ]
        if arguments.before:
            before = _cluster(arguments, max(arguments.stages), arguments.before)
            served.append(("before", opened.enter_context(before)))
        for number in range(arguments.rounds + 1):  # the first round warms up
            for system, agents in served:
                found = _measure(system, agents, arguments)
                if number > 0:
                    rounds.append(found)
                    _print(found)
    texts = {each.texts for each in rounds}
    summary = _summarize(rounds)
    for row in summary:
        print(json.dumps(row))
    print(f"the engine alone allows a decode ratio of {engine['decode_ratio_bound']:.3f}")
    print("identical texts" if len(texts) == 1 else "TEXTS DIFFER")
    results = {
        "model_bytes": weights_bytes(arguments.model),
        "engine_alone": engine,
        "summary": summary,
        "has_identical_texts": len(texts) == 1,
        "rounds": [
            {name: value for name, value in asdict(each).items() if name != "texts"}
            for each in rounds
        ],
    }
    write_result(arguments.output, "potluck.benchmark.pipelines/1", results)


def _print(found: Round) -> None:
    print(
        f"{found.system} {found.num_stages} stages: decode {found.decode_tokens_per_second:6.1f}/s,"
        f" in all {found.total_tokens_per_second:6.1f}/s,"
        f" first token {found.first_token_seconds:.2f} s, {found.seconds:.2f} s;",
        *(
            f"stage {each.stage}: {each.num_steps} steps, compute {each.compute_seconds:.2f}"
            f" send {each.send_seconds:.3f} idle {each.idle_seconds:.2f};"
            for each in found.stages
        ),
        *(f"{p.process} {p.cpu_seconds:.2f}+{p.wait_seconds:.2f};" for p in found.processes),
        flush=True,
    )


def _summarize(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return medians by number of stages, and the ratio to the fewest stages in the same round."""
    groups: dict[tuple[int, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.num_stages, each.system), []).append(each)
    base = groups[min(groups)]
    rows: list[dict[str, Any]] = []
    for (num_stages, system), group in sorted(groups.items()):
        row: dict[str, Any] = {
            "system": system,
            "num_stages": num_stages,
            "num_streams": group[0].num_streams,
        }
        for name in ("decode_tokens_per_second", "total_tokens_per_second"):
            ratios = [
                getattr(mine, name) / getattr(its, name)
                for mine, its in zip(group, base, strict=True)
            ]
            row[name] = statistics.median(getattr(each, name) for each in group)
            row[f"best_{name}"] = max(getattr(each, name) for each in group)
            row[f"{name}_ratio"] = statistics.median(ratios)
            row[f"{name}_ratio_range"] = (min(ratios), max(ratios))
        row["first_token_seconds"] = statistics.median(each.first_token_seconds for each in group)
        rows.append(row)
    return rows


# Clusters.


def _engine_alone(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run ``stage_times.py`` on the core of the first agent, and return its output."""
    core = min(os.sched_getaffinity(0))
    script = str(Path(__file__).parent / "stage_times.py")
    command = ["taskset", "-c", str(core), sys.executable, script]
    command += [str(arguments.model), "--streams", str(arguments.streams)]
    command += ["--stages", str(max(arguments.stages))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    _prefer(process.pid, arguments.nice)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError("the engine alone could not be measured")
    found: dict[str, Any] = json.loads(output)
    return found


def _prefer(pid: int, nice: int) -> None:
    if nice:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


@contextmanager
def _cluster(
    arguments: argparse.Namespace, num_agents: int, python: str
) -> Iterator[list[LiveAgent]]:
    """Run ``num_agents`` agents with the model divided among them; the first one coordinates."""
    with divided_among(
        own_cores(num_agents),
        arguments.model,
        MODEL_ID,
        python=python,
        context_tokens=512,
        cache_tokens=arguments.streams * 512,
        # Agents with equal memory get equal parts. Versions that place only by memory have no
        # objective.
        **({"objective": "memory"} if python == sys.executable else {}),
    ) as cluster:
        agents = [cluster.agents[number] for number in range(num_agents)]
        for agent in agents:
            _prefer(agent.pid, arguments.nice)
        yield agents


def _processes(agents: Sequence[LiveAgent]) -> Iterator[tuple[str, int]]:
    for agent in agents:
        yield f"agent {agent.number}", agent.pid
        for child in psutil.Process(agent.pid).children(recursive=True):
            with suppress(psutil.Error):
                is_worker = WORKER_MODULE in " ".join(child.cmdline())
                yield f"{'worker' if is_worker else 'acceptor'} {agent.number}", child.pid


def _stage_totals(agent: LiveAgent) -> dict[int, tuple[int, float, float]]:
    """Return the number of steps, and the seconds of computing and of sending, by stage."""
    url = f"http://127.0.0.1:{agent.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        lines = response.read().decode("utf-8").splitlines()
    steps: dict[int, float] = {}
    compute: dict[int, float] = {}
    send: dict[int, float] = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        kind, _, labels = name.partition("{")
        found = {
            key: text.strip('"')
            for key, _, text in (part.partition("=") for part in labels.rstrip("}").split(","))
        }
        if kind == "potluck_stage_steps_total":
            steps[int(found["stage"])] = float(value)
        elif kind == "potluck_stage_compute_seconds_total":
            compute[int(found["stage"])] = float(value)
        elif kind == "potluck_edge_send_seconds_total" and int(found["edge"]) > 0:
            send[int(found["edge"]) - 1] = float(value)
    return {index: (int(steps[index]), compute[index], send[index]) for index in steps}


# One round.


class _Stream:
    """A streamed answer, read as it arrives, with as little work as possible."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), _STREAM_SECONDS)
        content = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self._request = head.encode() + content
        self._received = bytearray()
        self.times: list[float] = []
        self.is_over = False

    def send(self) -> None:
        self.connection.sendall(self._request)

    def read(self) -> None:
        received = self.connection.recv(1 << 16)
        now = time.perf_counter()
        self._received += received
        self.times += [now] * received.count(b'"finish_reason":null')
        self.is_over = not received or b"data: [DONE]" in received

    def text(self, num_tokens: int) -> str:
        """Return the complete answer. Raise ``RuntimeError`` if it is incomplete."""
        text, num_given = "", None
        for line in bytes(self._received).splitlines():
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                text += "".join(choice["text"] for choice in event.get("choices", ()))
                num_given = (event.get("usage") or {}).get("completion_tokens", num_given)
        if num_given != num_tokens:
            raise RuntimeError(f"{num_given} tokens instead of {num_tokens}: {self._received!r}")
        return text


def _measure(system: str, agents: Sequence[LiveAgent], arguments: argparse.Namespace) -> Round:
    streams = []
    for index in range(arguments.streams):
        body = {
            "model": MODEL_ID,
            "prompt": random_prompt(random.Random(SEED + index), arguments.prompt),
            "max_tokens": arguments.tokens,
            "temperature": 1.0,
            "seed": index,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logit_bias": NO_END,
        }
        streams.append(_Stream(agents[0].port, body))
    processes = dict(_processes(agents))
    totals = _stage_totals(agents[0])
    scheduled = {name: scheduled_seconds(pid) for name, pid in processes.items()}
    own = time.process_time()
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            stream.send()
            selector.register(stream.connection, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select(_STREAM_SECONDS):
                key.data.read()
                if key.data.is_over:
                    selector.unregister(key.data.connection)
    seconds = time.perf_counter() - started
    own = time.process_time() - own
    spent = {name: scheduled_seconds(pid) for name, pid in processes.items()}
    after = _stage_totals(agents[0])
    for stream in streams:
        stream.connection.close()
    texts = tuple(stream.text(arguments.tokens) for stream in streams)
    begun = max(stream.times[0] for stream in streams)
    ended = min(stream.times[-1] for stream in streams)
    # Some tokens end in the middle of a character and come with the next one.
    events = sum(len(stream.times) for stream in streams)
    between = sum(1 for stream in streams for at in stream.times if begun < at <= ended)
    num_tokens = arguments.streams * arguments.tokens
    stages = []
    for index, (num_steps, compute, send) in after.items():
        before = totals[index]
        computed, sent = compute - before[1], send - before[2]
        stages.append(
            StageTimes(
                stage=index,
                num_steps=num_steps - before[0],
                compute_seconds=computed,
                send_seconds=sent,
                idle_seconds=seconds - computed - sent,
            )
        )
    return Round(
        system=system,
        num_stages=len(agents),
        num_streams=arguments.streams,
        decode_tokens_per_second=between * num_tokens / events / (ended - begun),
        total_tokens_per_second=num_tokens / seconds,
        first_token_seconds=begun - started,
        seconds=seconds,
        stages=tuple(stages),
        processes=(
            *(
                Times(
                    process=name,
                    cpu_seconds=spent[name][0] - scheduled[name][0],
                    wait_seconds=spent[name][1] - scheduled[name][1],
                )
                for name in processes
            ),
            Times(process="client", cpu_seconds=own, wait_seconds=0.0),
        ),
        texts=texts,
    )


if __name__ == "__main__":
    main()
