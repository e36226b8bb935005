"""Measure what a group of units gains for one stream: METHODOLOGY, "Groups".

    python benchmarks/tensor_parallel.py DIRECTORY [--types Q8_0 BF16 Q4_K_M Q4_0]
        [--peer DLLAMA [--peer-commit COMMIT]] [--llama-bench LLAMA_BENCH] [--unequal]
        [--output benchmarks/results/tensor_parallel.json]

Models of the shape are made in DIRECTORY where they are not there. For every type a cluster of one
agent and a cluster of two agents that hold the model as a group serve it on loopback, each agent
and its worker bound to one core with one thread, and are asked in turn over HTTP: sampled and
greedy streams after prompts of 512 tokens for the rate of decoding, and prompts of 512 tokens for
that of prefill. The answers of both must be the same. With ``--peer``, the program ``dllama`` of
distributed-llama decodes a model of the same shape in its Q40 on one core and on two in the same
rounds; its commit is that of its checkout unless it is given. ``--llama-bench`` adds llama.cpp with
the same file in Q4_0 on one core. In every round, one thread and two read memory that is larger
than the caches: decoding can hardly gain more than they do. ``--unequal`` adds three agents with
shares 2:1:1 of a core, by control groups (root), against the fastest of them alone, on the same
core with the same share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from circumstances import circumstances
from command_line import documented_parser
from comparison import Setting
from distributed_llama import build_of, measured, write_model, write_tokenizer
from live_cluster import divided_among
from llamacpp import LlamaBench
from model_shapes import SHAPES
from shapes import model_of
from token_stream import Ask, random_prompt, stream_whole

from potluck.engines.native.pool import make_pool
from potluck.kernels.runner import MemoryReader

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.cluster.throttled_fleet import Machine, require_groups, throttled_fleet

MODEL_ID = "model"
AIMS = {"Q8_0": 1.5, "BF16": 1.5, "Q4_K_M": 1.4}
PREFILL_AIM = 1.7
UNEQUAL_AIM = 1.3
UNEQUAL = (0.8, 0.4, 0.4)
"""Shares of a core; those of the second core add up to less than one."""
PEER_TYPE = "Q4_0"
PEERS = {"distributed-llama x1": 1, "distributed-llama x2": 2, "llama.cpp x1": 1}
"""The other programs, and the number of agents that each is compared with."""
PEER_VOCAB = 6400
PROMPT_TOKENS = 512
LLAMA_BENCH_SECONDS = 900.0
MEMORY_BYTES = 512 << 20
"""The size of the memory test: several times the last-level cache of the measured machines."""
MEMORY_PASSES = 3
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}

Document = dict[str, Any]


def main() -> None:
    """Measure every type, print the ratios, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1B")
    parser.add_argument("--types", nargs="+", default=["Q8_0", "BF16", "Q4_K_M", PEER_TYPE])
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--peer", type=Path, help="the program dllama of distributed-llama")
    parser.add_argument("--peer-commit", help="of which it was built, if it lies in no checkout")
    parser.add_argument("--llama-bench", type=Path, help="the program llama-bench of llama.cpp")
    parser.add_argument("--unequal", action="store_true", help="three agents, 2:1:1")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    document: Document = {**circumstances(), "shape": arguments.shape, "types": {}}
    if arguments.peer is not None:
        try:
            document["distributed_llama"] = asdict(build_of(arguments.peer, arguments.peer_commit))
        except ValueError as error:
            parser.error(f"{error}; give --peer-commit")
    if arguments.llama_bench is not None:
        model = model_of(arguments.directory, arguments.shape, PEER_TYPE)
        document["llama_cpp"] = asdict(_llama_bench(arguments).describe(model))
    if arguments.unequal:
        require_groups()  # before the rest is measured
    for type_name in arguments.types:
        found = measure_type(arguments, type_name)
        document["types"][type_name] = found
        print(type_name, json.dumps(found["ratios"]), flush=True)
        _write(arguments.output, document)
    if arguments.unequal:
        document["unequal"] = measure_unequal(arguments, arguments.types[0])
        print("2:1:1", json.dumps(document["unequal"]["ratios"]), flush=True)
    _write(arguments.output, document)


def measure_type(arguments: argparse.Namespace, type_name: str) -> Document:
    """Return rates and ratios of one agent, of two in a group, and of peers if there are any."""
    model = model_of(arguments.directory, arguments.shape, type_name)
    cores = sorted(os.sched_getaffinity(0))[:2]
    rounds: list[dict[str, Document]] = []
    memory: list[dict[str, float]] = []
    with ExitStack() as opened:
        ports = {}
        for count in (1, 2):
            group = divided_among(cores[:count], model, MODEL_ID, **_options(count))
            ports[f"potluck x{count}"] = opened.enter_context(group).agents[0].port
        for number in range(arguments.rounds + 1):
            found = {name: _ask(port, number, arguments.tokens) for name, port in ports.items()}
            if len({json.dumps(each.pop("texts")) for each in found.values()}) > 1:
                raise RuntimeError(f"{type_name}: the group's answers are other than the agent's")
            if type_name == PEER_TYPE:
                found |= _ask_peers(arguments, model, cores)
            if number > 0:  # the first round warms up
                rounds.append(found)
                memory.append(_memory_rates())
    ratios = _ratios(rounds, type_name)
    ratios["memory's gain"] = round(
        statistics.median(each["two threads"] / each["one thread"] for each in memory), 3
    )
    return {"rounds": rounds, "read_bytes_per_second": memory, "ratios": ratios}


def measure_unequal(arguments: argparse.Namespace, type_name: str) -> Document:
    """Return what three unequal agents in a group gain over the fastest of them alone."""
    model = model_of(arguments.directory, arguments.shape, type_name).resolve()
    machines = [Machine(cores=each, core=min(at, 1)) for at, each in enumerate(UNEQUAL)]
    fastest = max(machines, key=lambda machine: machine.cores)
    parts: list[object] = []
    rounds: list[dict[str, Document]] = []
    with ExitStack() as opened:
        ports: dict[str, int] = {}
        for name, members in (("fastest alone", [fastest]), ("potluck 2:1:1", machines)):
            directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            fleet = opened.enter_context(throttled_fleet(directory, members))
            deployed = fleet.coordinator.ask(
                "deploy", model=str(model), model_id=MODEL_ID, **_options(len(members))
            )
            parts = [stage["part"] for stage in deployed["stages"]]
            if len(parts) != len(members):
                raise RuntimeError(f"{len(parts)} members instead of {len(members)}")
            ports[name] = fleet.port
        for number in range(arguments.rounds + 1):
            found = {name: _ask(port, number, arguments.tokens) for name, port in ports.items()}
            if len({json.dumps(each.pop("texts")) for each in found.values()}) > 1:
                raise RuntimeError("the group's answers are other than the agent's")
            if number > 0:
                rounds.append(found)
    return {
        "cores": UNEQUAL,
        "cores_alone": fastest.cores,
        "parts": parts,
        "rounds": rounds,
        "ratios": _ratios(rounds, "2:1:1"),
    }


def _options(num_agents: int) -> Document:
    tensor_parallel = {"tensor_parallel": num_agents} if num_agents > 1 else {}
    return {"context_tokens": 1024, "draft": "off", **tensor_parallel}


def _ask(port: int, number: int, num_tokens: int) -> Document:
    """Ask for a stream of each kind, and for the first token of long prompts."""
    rng = random.Random(number)
    found: Document = {"texts": []}
    for name, temperature in TEMPERATURES.items():
        ask = Ask(
            prompt=random_prompt(rng, PROMPT_TOKENS),
            max_tokens=num_tokens,
            seed=number,
            temperature=temperature,
            penalty=0.0,
            has_logprobs=False,
        )
        stream = stream_whole(port, MODEL_ID, ask)
        found[f"{name} decode"] = (len(stream.times) - 1) / (stream.times[-1] - stream.times[0])
        found["texts"].append(stream.text)
    prompt = random_prompt(rng, PROMPT_TOKENS)
    ask = Ask(prompt=prompt, max_tokens=1, seed=number, has_logprobs=False)
    started = time.perf_counter()
    stream_whole(port, MODEL_ID, ask)
    found["prefill"] = PROMPT_TOKENS / (time.perf_counter() - started)
    return found


def _memory_rates() -> dict[str, float]:
    """Return at how many bytes per second one thread, and two at once, read memory."""
    rates = {}
    for name, num_threads in (("one thread", 1), ("two threads", 2)):
        reader = MemoryReader(num_bytes=MEMORY_BYTES, pool=make_pool(num_threads))
        rates[name] = reader.num_bytes / min(reader.read() for _ in range(MEMORY_PASSES))
    return rates


def _ask_peers(
    arguments: argparse.Namespace, model: Path, cores: Sequence[int]
) -> dict[str, Document]:
    found: dict[str, Document] = {}
    if arguments.peer is not None:
        found |= _ask_distributed_llama(arguments, cores)
    if arguments.llama_bench is not None:
        found["llama.cpp x1"] = _ask_llamacpp(
            _llama_bench(arguments), model, cores[0], arguments.tokens
        )
    return found


def _llama_bench(arguments: argparse.Namespace) -> LlamaBench:
    return LlamaBench(executable=arguments.llama_bench, timeout_seconds=LLAMA_BENCH_SECONDS)


def _ask_llamacpp(peer: LlamaBench, model: Path, core: int, num_tokens: int) -> Document:
    """Return the rates of llama.cpp with one thread on a core."""
    prefill = Setting(
        type_name=PEER_TYPE, num_threads=1, num_prompt_tokens=PROMPT_TOKENS, num_decode_tokens=0
    )
    decode = replace(
        prefill, num_prompt_tokens=0, num_decode_tokens=num_tokens, depth_tokens=PROMPT_TOKENS
    )
    found: Document = {}
    with _bound_to(core):
        for setting, kind in ((prefill, "prefill"), (decode, "greedy decode")):
            rates = peer.run(model, setting, flash_attention=True, num_repeats=1).outcome.rates
            if rates.failures:
                raise RuntimeError(f"llama.cpp: {'; '.join(rates.failures)}")
            (found[kind],) = rates.prefill if setting is prefill else rates.decode
    return found


@contextlib.contextmanager
def _bound_to(core: int) -> Iterator[None]:
    """Bind this process, and those that it starts in the block, to a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _ask_distributed_llama(
    arguments: argparse.Namespace, cores: Sequence[int]
) -> dict[str, Document]:
    model = arguments.directory / f"{arguments.shape}.m"
    tokenizer = arguments.directory / f"{arguments.shape}.t"
    if not model.exists():
        shape = SHAPES[arguments.shape]
        vocab_size = shape.vocab_size or PEER_VOCAB
        write_model(shape, vocab_size, model)
        write_tokenizer(vocab_size, tokenizer)
    found: dict[str, Document] = {}
    for count in (1, 2):
        rates = measured(
            arguments.peer,
            model,
            tokenizer,
            cores[:count],
            num_prompt_tokens=PROMPT_TOKENS,
            num_tokens=arguments.tokens,
        )
        found[f"distributed-llama x{count}"] = {
            "greedy decode": rates.decode_tokens_per_second,
            "prefill": rates.prefill_tokens_per_second,
        }
    return found


def _ratios(rounds: Sequence[Mapping[str, Document]], type_name: str) -> Document:
    """Return the medians over rounds: rates, gains over one, and ours over those of peers."""
    rates = {
        system: {
            name: statistics.median(each[system][name] for each in rounds)
            for name in rounds[0][system]
        }
        for system in rounds[0]
    }
    ratios: Document = {"tokens_per_second": rates}
    one, many, *peers = rounds[0]
    pairs = [("gain", many, one)]
    if "distributed-llama x2" in peers:
        pairs += [("peer's gain", "distributed-llama x2", "distributed-llama x1")]
    pairs += [(f"over {peer}", one if PEERS[peer] == 1 else many, peer) for peer in peers]
    for name, above, below in pairs:
        ratios[name] = {
            kind: round(
                statistics.median(each[above][kind] / each[below][kind] for each in rounds), 3
            )
            for kind in rounds[0][above]
            if kind in rounds[0][below]
        }
    ratios["aims"] = {"decode": AIMS.get(type_name), "prefill": PREFILL_AIM}
    if type_name == "2:1:1":
        ratios["aims"] = {"decode": UNEQUAL_AIM}
    return ratios


def _write(output: Path | None, document: Document) -> None:
    if output is not None:
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
