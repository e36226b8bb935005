"""Measure the costs and gains of dividing a model: ``benchmarks/METHODOLOGY.md``, "Cluster".

    python benchmarks/shapes.py 0.5B /tmp/half
    python benchmarks/cluster.py /tmp/half [--output benchmarks/results/cluster.json]

Clusters of 1, 2 and 3 agents, each agent on one core with one thread, serve the same model on
loopback at the same time, and are asked in turn, with one stream and with several. ``--llama PATH``
(a folder with ``llama-server`` and ``rpc-server``; MODEL must be a .gguf file) asks llama.cpp
beside them: alone on one core, and with as many RPC servers as there are stages.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from circumstances import write_result
from command_line import documented_parser
from live_cluster import divided_among, own_cores, wait_until
from model_shapes import weights_bytes
from token_stream import NO_END, random_prompt, together

NUM_STAGES = (1, 2, 3)
MODEL_ID = "model"
SEED = 1

_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request per stream, all at once. Rates are of all streams together."""

    system: str
    num_stages: int
    num_streams: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model behind an OpenAI-compatible address on loopback."""

    system: str
    num_stages: int
    port: int
    extra: Mapping[str, object]


def main() -> None:
    """Start everything, ask in turn, print ratios, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama", type=Path, help="folder with llama-server and rpc-server")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    samples: list[Sample] = []
    failures: list[str] = []
    with ExitStack() as opened:
        served = [opened.enter_context(_potluck(arguments.model, num)) for num in NUM_STAGES]
        if arguments.llama:
            most = max(arguments.streams)
            context = most * (arguments.prompt + arguments.tokens + 16)
            for num in NUM_STAGES:
                llama = _llama(arguments.llama, arguments.model, num, most, context)
                try:
                    served.append(opened.enter_context(llama))
                except (OSError, RuntimeError) as error:
                    failures.append(f"llama.cpp with {num} stages: {error}")
                    print(failures[-1], file=sys.stderr)
        for number in range(arguments.rounds + 1):  # the first round warms up
            for num_streams in arguments.streams:
                for each in served:
                    sample = _measure(each, num_streams, arguments.prompt, arguments.tokens)
                    if number > 0:
                        samples.append(sample)
    rows = _summarize(samples)
    for row in rows:
        print(
            f"{row['system']:10} {row['num_stages']} stages {row['num_streams']:2} streams"
            f"   prefill {row['prefill_tokens_per_second']:8.1f}"
            f"   decode {row['decode_tokens_per_second']:7.1f} tokens/s"
            f"   ×{row['decode_ratio']:.3f} of one stage ({row['decode_ratio_range'][0]:.3f}"
            f" to {row['decode_ratio_range'][1]:.3f})"
        )
    results = {
        "cores": sorted(os.sched_getaffinity(0)),
        "model_bytes": weights_bytes(arguments.model),
        "medians": rows,
        "samples": [asdict(sample) for sample in samples],
        "failures": failures,
    }
    write_result(arguments.output, "potluck.benchmark.cluster/1", results)


# The measured servers.


@contextmanager
def _potluck(model: Path, num_stages: int) -> Iterator[Served]:
    """Run a cluster of ``num_stages`` agents with the model divided among all of them."""
    with divided_among(
        own_cores(num_stages),
        model,
        MODEL_ID,
        context_tokens=512,
        objective="memory",
        prefix_cache=False,
    ) as cluster:
        yield Served(
            system="potluck",
            num_stages=num_stages,
            port=cluster.agents[0].port,
            extra={"logit_bias": NO_END},
        )


@contextmanager
def _llama(
    folder: Path, model: Path, num_stages: int, num_streams: int, context: int
) -> Iterator[Served]:
    """Run llama-server on one core, with an RPC server per stage if there are several stages."""
    cores = own_cores(num_stages)
    with ExitStack() as opened:
        port = _free_port()
        command = [str(folder / "llama-server"), "-m", str(model), "--host", "127.0.0.1"]
        command += ["--port", str(port), "-t", "1", "-c", str(context), "-np", str(num_streams)]
        if num_stages > 1:
            peers = []
            for core in cores:
                peers.append(_free_port())
                remote = [str(folder / "rpc-server"), "-H", "127.0.0.1", "-t", "1"]
                remote += ["-p", str(peers[-1])]
                opened.enter_context(_process(remote, core, stdout=subprocess.DEVNULL))
            for peer in peers:
                wait_until(partial(_accepts, peer), within=_SECONDS, what="an RPC server accepts")
            addresses = ",".join(f"127.0.0.1:{peer}" for peer in peers)
            command += ["-ngl", "999", "--rpc", addresses]
        opened.enter_context(
            _process(command, cores[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        wait_until(lambda: _is_healthy(port), within=_SECONDS, what="llama-server is healthy")
        yield Served(
            system="llama.cpp", num_stages=num_stages, port=port, extra={"ignore_eos": True}
        )


def _measure(served: Served, num_streams: int, num_prompt: int, num_new: int) -> Sample:
    """Ask all streams at once; METHODOLOGY.md says how the rates are made."""
    barrier = threading.Barrier(num_streams)
    answers: list[tuple[float, float, float]] = []

    def stream(index: int) -> None:
        prompt = random_prompt(random.Random(SEED + index), num_prompt)
        barrier.wait()
        answers.append(_complete(served, prompt, num_new, seed=index))

    together(partial(stream, index) for index in range(num_streams))
    if len(answers) != num_streams:
        raise RuntimeError(f"{num_streams - len(answers)} of {num_streams} streams failed")
    started = min(answer[0] for answer in answers)
    first = min(answer[1] for answer in answers)
    all_begun = max(answer[1] for answer in answers)
    ended = max(answer[2] for answer in answers)
    return Sample(
        system=served.system,
        num_stages=served.num_stages,
        num_streams=num_streams,
        prefill_tokens_per_second=num_streams * num_prompt / (all_begun - started),
        decode_tokens_per_second=num_streams * (num_new - 1) / (ended - first),
    )


def _complete(
    served: Served, prompt: Sequence[int], num_new: int, *, seed: int
) -> tuple[float, float, float]:
    """Return the times of the request, of its first text and of its last event."""
    body = {
        "model": MODEL_ID,
        "prompt": prompt,
        "max_tokens": num_new,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        **served.extra,
    }
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=_SECONDS)
    try:
        started = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"HTTP status {response.status}: {response.read().decode()}")
        first = last = None
        num_tokens = 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            if event["choices"]:
                last = time.perf_counter()
                first = first or last
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
        if first is None or last is None or num_tokens != num_new:
            raise RuntimeError(f"{num_tokens} tokens instead of {num_new}")
        return started, first, last
    finally:
        connection.close()


def _summarize(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return medians, and the ratio to one stage in the same round of the same system."""
    groups: dict[tuple[str, int, int], list[Sample]] = {}
    for sample in samples:
        key = (sample.system, sample.num_streams, sample.num_stages)
        groups.setdefault(key, []).append(sample)
    rows = []
    for (system, num_streams, num_stages), group in sorted(groups.items()):
        alone = groups.get((system, num_streams, 1))
        ratios = [
            mine.decode_tokens_per_second / its.decode_tokens_per_second
            for mine, its in zip(group, alone or group, strict=True)
        ]
        rows.append(
            {
                "system": system,
                "num_streams": num_streams,
                "num_stages": num_stages,
                "prefill_tokens_per_second": statistics.median(
                    each.prefill_tokens_per_second for each in group
                ),
                "decode_tokens_per_second": statistics.median(
                    each.decode_tokens_per_second for each in group
                ),
                "decode_ratio": statistics.median(ratios),
                "decode_ratio_range": (min(ratios), max(ratios)),
            }
        )
    return rows


# Processes.


@contextmanager
def _process(command: list[str], core: int, **options: Any) -> Iterator[None]:
    """Run a process and its children on ``core`` until the end of the block."""
    process = subprocess.Popen(["taskset", "-c", str(core), *command], **options)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
