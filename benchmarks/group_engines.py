"""Measure what a group's engines spend on exchanges: METHODOLOGY, "Group engines".

    python benchmarks/group_engines.py [--layers 4] [--types Q8_0 BF16] [--output FILE]

- *Links*: prompts in the layers of the 1B shape, whole on one thread and divided between two
  engines with one thread each, in one process. Messages go through memory, at once or as a link
  would deliver them: so many bytes per second in each direction, and a time on the way. Waiting for
  such a link takes no core.
- *Own time*: what one of them takes for an exchange that does nothing: to make messages, to call
  Python, and to take messages apart.

The figures go to stdout, the JSON document to the file. What edges and TLS take is in
``exchange.py``.
"""

from __future__ import annotations

import json
import queue
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import circumstances
from command_line import documented_parser
from cost_model import config_of, loaded_engine, step_of
from model_shapes import SHAPES

from potluck.engines.native.engine import NativeEngine, choose_isa
from potluck.engines.native.pool import make_pool
from potluck.types.choices import Quantization
from potluck.types.program import Shard

SCHEMA = "potluck.benchmark.group_engines/1"
PROMPT_TOKENS = 512
OWN_TOKENS = (1, 8, 512)
CONTEXT = 512
ROUNDS = 5
LEAST_SECONDS = 0.3
"""The steps of a round take at least this long."""
TYPES = {
    "Q8_0": Quantization.Q8_0,
    "BF16": Quantization.NONE,
    "Q4_K": Quantization.Q4_K,
    "Q4_0": Quantization.Q4_0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link from each member to each other one; with a rate of 0, messages arrive immediately."""

    name: str
    bytes_per_second: float = 0.0
    seconds: float = 0.0

    def time_of(self, num_bytes: int) -> float:
        """Return how long the link is busy with a message."""
        return num_bytes / self.bytes_per_second if self.bytes_per_second else 0.0


LINKS = (
    Link(name="memory"),
    Link(name="1 GbE", bytes_per_second=117e6, seconds=60e-6),
    Link(name="2.5 GbE", bytes_per_second=293e6, seconds=60e-6),
)


class Exchanges:
    """The exchange of one of two members; adds up the time that an idle link would take."""

    def __init__(self) -> None:
        self.link = LINKS[0]
        self.other: Exchanges | None = None
        self.arrived: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.reset()

    def reset(self) -> None:
        """Count from 0."""
        self.free_at = 0.0
        self.num_exchanges = 0
        self.num_bytes = 0
        self.link_seconds = 0.0

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        """See ``potluck.types.engine.Exchange``."""
        assert self.other is not None
        num_sent, num_received = max(map(len, sent)), max(map(len, received))
        if num_sent:
            now = time.perf_counter()
            self.free_at = max(now, self.free_at) + self.link.time_of(num_sent)
            data = next(bytes(each) for each in sent if each)
            self.other.arrived.put((self.free_at + self.link.seconds, data))
        if num_received:
            at, data = self.arrived.get(timeout=60)
            if (left := at - time.perf_counter()) > 0:
                time.sleep(left)
            next(each for each in received if each)[:] = data
        self.num_exchanges += 1
        self.num_bytes += num_sent
        most = max(num_sent, num_received)
        self.link_seconds += self.link.time_of(most) + (self.link.seconds if most else 0.0)


class Nothing:
    """Another member whose messages are always there already."""

    def __init__(self) -> None:
        self.num_exchanges = 0

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        """See ``potluck.types.engine.Exchange``."""
        self.num_exchanges += 1


class Pair:
    """Two engines that form a group, each in a separate thread."""

    def __init__(self, engines: Sequence[NativeEngine]) -> None:
        self.engines = tuple(engines)
        self.exchanges = (Exchanges(), Exchanges())
        for each, other in zip(self.exchanges, self.exchanges[::-1], strict=True):
            each.other = other
        for engine, exchange in zip(self.engines, self.exchanges, strict=True):
            engine.join_group(exchange)
        self._threads = ThreadPoolExecutor(2)

    def step(self, step: Any, hidden: Any) -> None:
        """Compute a step in both."""
        for done in [self._threads.submit(each.step, step, hidden) for each in self.engines]:
            done.result()


def seconds_of(engine: NativeEngine | Pair, num_tokens: int, width: int) -> float:
    """Return the mean time of a step in one round."""
    step = step_of(1, num_tokens, CONTEXT, has_states=False)
    hidden = np.random.default_rng(0).standard_normal((num_tokens, width), dtype=np.float32)
    engine.step(step, hidden)
    if isinstance(engine, Pair):
        for each in engine.exchanges:
            each.reset()
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < LEAST_SECONDS or count < 2:
        engine.step(step, hidden)
        count += 1
    if isinstance(engine, Pair):
        for each in engine.exchanges:
            each.num_exchanges //= count
            each.num_bytes //= count
            each.link_seconds /= count
    return elapsed / count


def layers(num_layers: int) -> Shard:
    """Return a stage of layers alone."""
    return Shard(
        start_layer=0,
        end_layer=num_layers,
        num_layers=num_layers,
        has_embedding=False,
        has_head=False,
    )


def measure_links(kind: str, num_layers: int) -> list[dict[str, Any]]:
    """Return a row for each link."""
    config, whole = config_of(replace(SHAPES["1B"], num_layers=num_layers)), layers(num_layers)
    width, isa = config.hidden_size, choose_isa(None)

    def engine(shard: Shard) -> NativeEngine:
        return loaded_engine(config, shard, TYPES[kind], make_pool(1), isa)

    single = engine(whole)
    pair = Pair([engine(each) for each in whole.divided((1, 1))])
    samples: dict[str, list[float]] = {"single": [], **{each.name: [] for each in LINKS}}
    counted: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        samples["single"].append(seconds_of(single, PROMPT_TOKENS, width))
        for link in LINKS:
            for each in pair.exchanges:
                each.link = link
            samples[link.name].append(seconds_of(pair, PROMPT_TOKENS, width))
            leader = pair.exchanges[0]
            counted[link.name] = {
                "num_exchanges": leader.num_exchanges,
                "sent_bytes": leader.num_bytes,
                "link_seconds": leader.link_seconds,
            }
    return [
        {
            "type": kind,
            "link": link.name,
            "single_seconds": samples["single"],
            "group_seconds": samples[link.name],
            **counted[link.name],
        }
        for link in LINKS
    ]


def measure_own_time(kind: str, num_layers: int) -> list[dict[str, Any]]:
    """Return a row for each number of tokens."""
    config, whole = config_of(replace(SHAPES["1B"], num_layers=num_layers)), layers(num_layers)
    leader, _ = whole.divided((1, 1))
    engine = loaded_engine(config, leader, TYPES[kind], make_pool(1), choose_isa(None))
    nothing = Nothing()
    engine.join_group(nothing)
    engine.time_ops()
    rows = []
    for num_tokens in OWN_TOKENS:
        samples = []
        for _ in range(ROUNDS):
            before, nothing.num_exchanges = engine.op_seconds()["exchange"], 0
            seconds_of(engine, num_tokens, config.hidden_size)
            taken = engine.op_seconds()["exchange"] - before
            samples.append(taken / nothing.num_exchanges)
        rows.append({"type": kind, "num_tokens": num_tokens, "exchange_seconds": samples})
    return rows


def main() -> None:
    """Measure every type, print a line for each case, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--types", nargs="+", default=["Q8_0", "BF16"], choices=TYPES)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "schema": SCHEMA,
        **circumstances(),
        "num_layers": arguments.layers,
        "links": [],
        "own_time": [],
    }
    for kind in arguments.types:
        for row in measure_own_time(kind, arguments.layers):
            document["own_time"].append(row)
            microseconds = 1e6 * statistics.median(row["exchange_seconds"])
            print(f"{kind:5} {row['num_tokens']:3} tokens: own time {microseconds:7.1f} µs")
        for row in measure_links(kind, arguments.layers):
            document["links"].append(row)
            single, group = (
                1e3 * statistics.median(row[each]) for each in ("single_seconds", "group_seconds")
            )
            print(
                f"{kind:5} {row['link']:8} one {single:8.2f} ms, two {group:8.2f} ms "
                f"({single / group:4.2f}), {row['num_exchanges']:3} exchanges, "
                f"{row['sent_bytes'] / 1e3:9.1f} kB, {1e3 * row['link_seconds']:7.2f} ms of link",
                flush=True,
            )
    if arguments.output:
        arguments.output.write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
