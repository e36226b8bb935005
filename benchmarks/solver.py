"""Measure the quality and the time of the placement solver: METHODOLOGY, "Solver".

    PYTHONPATH=src:tests python benchmarks/solver.py [--output benchmarks/results/solver.json]

One process and one thread, no model and no network. A table goes to stdout, the JSON document to
the file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path as FilePath
from typing import TypeVar

import numpy as np
from circumstances import write_result
from support.placement.path_problems import (
    all_answers,
    fleet_problem,
    for_sequences,
    random_answers,
    random_problem,
)

from potluck.placement.cuts import Cut
from potluck.placement.path import PathProblem
from potluck.placement.solver import best_throughput, replicate, shortest_path, total_rate

Answer = TypeVar("Answer")
NUM_STREAMS = 8
NUM_RANDOM = 500
LINKS = ("equal", "unequal", "sites")
PARTS = ((0.3, 1.5), (0.05, 0.2), (0.01, 0.06))
"""The share of the model's bytes that units may use: few, some or most of 50 units are needed."""


def main() -> None:
    """Solve, print a table, write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=FilePath)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    results = [small_fleets(100 * arguments.seeds)]
    for num_units, num_layers in ((12, 30), (50, 126)):
        for links in LINKS:
            for part in PARTS if num_units == 50 else PARTS[:2]:
                for seed in range(arguments.seeds):
                    results += larger_fleet(num_units, num_layers, links, part, seed)
    for links, part, num_streams in (
        ("equal", (0.02, 0.1), 8),
        ("unequal", (0.02, 0.1), 8),
        ("sites", (0.02, 0.1), 64),
        ("unequal", (0.2, 1.2), 256),
    ):
        results += wide_fleet(links, part, num_streams)
    schema = "potluck.benchmark.solver/1"
    write_result(arguments.output, schema, {"results": results}, indent=1)


def small_fleets(num_fleets: int) -> dict[str, object]:
    """Compare both objectives with every possible answer."""
    random = np.random.default_rng(0)
    worst, num_solved, seconds = 0.0, 0, 0.0
    for _ in range(num_fleets):
        problem = random_problem(
            random, num_units=int(random.integers(1, 6)), num_layers=int(random.integers(1, 9))
        )
        paths, _ = all_answers(problem)
        path, search_seconds = timed(partial(shortest_path, problem))
        found, throughput_seconds = timed(
            partial(best_throughput, partial(for_sequences, problem), NUM_STREAMS)
        )
        seconds += search_seconds + throughput_seconds
        if not len(paths):
            if path is not None or found is not None:
                raise RuntimeError("an answer where there is none")
            continue
        num_solved += 1
        least = np.inf
        for num_in_flight in range(1, min(NUM_STREAMS, problem.num_units + 1) + 1):
            of_sequences = for_sequences(problem, -(-NUM_STREAMS // num_in_flight))
            ways, busiest = all_answers(of_sequences)
            least = min(least, float(np.maximum(ways, num_in_flight * busiest).min()))
        if path is None or found is None:
            raise RuntimeError("no answer where there is one")
        worst = max(worst, path.seconds / paths.min() - 1, found.path.seconds / least - 1)
    print(f"{num_fleets} small fleets, {num_solved} with an answer: worst excess {worst:.1e}")
    return {
        "case": "small",
        "num_fleets": num_fleets,
        "num_solved": num_solved,
        "worst_excess": worst,
        "cpu_seconds": seconds,
    }


def larger_fleet(
    num_units: int, num_layers: int, links: str, part: tuple[float, float], seed: int
) -> list[dict[str, object]]:
    """Compare both objectives with their bounds and with random answers."""
    random = np.random.default_rng(seed)
    problem = fleet_problem(
        random, num_units=num_units, num_layers=num_layers, part=part, links=links
    )
    answers = random_answers(problem, random, num_answers=NUM_RANDOM)
    case = f"{num_units}x{num_layers} {links} {part[0]:g}-{part[1]:g}"
    common = {"case": case, "seed": seed, "num_random": len(answers)}
    path, search_seconds = timed(partial(shortest_path, problem))
    of_sequences = cache(partial(for_sequences, problem))
    found, throughput_seconds = timed(partial(best_throughput, of_sequences, NUM_STREAMS))
    if path is None or found is None:
        return [{**common, "objective": "both", "found": False}]
    random_seconds = min(map(problem.path_seconds, answers), default=None)
    random_period = least_period(of_sequences, answers)
    results: list[dict[str, object]] = []
    for objective, best, least, seconds in (
        ("latency", path, random_seconds, search_seconds),
        ("throughput", found.path, random_period, throughput_seconds),
    ):
        ratio = least / best.seconds if least else None
        print(
            f"{case:28} {seed} {objective:10} {len(best.cuts):3} stages  {seconds:6.2f} s CPU"
            f"  gap {best.gap:7.4f}  best random x{ratio or 0:.3f}",
            flush=True,
        )
        results.append(
            {
                **common,
                "objective": objective,
                "found": True,
                "num_stages": len(best.cuts),
                "cpu_seconds": seconds,
                "seconds": best.seconds,
                "gap": best.gap,
                "best_random_ratio": ratio,
            }
        )
    return results


def least_period(
    of_sequences: Callable[[int], PathProblem], answers: list[tuple[Cut, ...]]
) -> float | None:
    """Return the least period of answers with any number of steps in flight."""
    periods = [
        max(work.path_seconds(cuts), num_in_flight * work.bottleneck_seconds(cuts))
        for num_in_flight in range(1, NUM_STREAMS + 1)
        for work in [of_sequences(-(-NUM_STREAMS // num_in_flight))]
        for cuts in answers
    ]
    return min(periods, default=None)


def wide_fleet(links: str, part: tuple[float, float], num_streams: int) -> list[dict[str, object]]:
    """Solve for 1,000 units: one stream, and pipelines side by side."""
    random = np.random.default_rng(1)
    problem = fleet_problem(random, num_units=1000, num_layers=126, part=part, links=links)
    case = f"1000x126 {links} {part[0]:g}-{part[1]:g}"
    path, search_seconds = timed(partial(shortest_path, problem))
    of_sequences = cache(partial(for_sequences, problem))
    one, one_seconds = timed(partial(best_throughput, of_sequences, num_streams))
    pipelines, all_seconds = timed(partial(replicate, of_sequences, num_streams))
    if path is None or one is None:
        return [{"case": case, "found": False}]
    rate, one_rate = total_rate(pipelines), num_streams / one.path.seconds
    print(
        f"{case:28} latency {len(path.cuts)} stages {search_seconds:.1f} s CPU gap {path.gap:.3f};"
        f" {num_streams} streams: {one_rate:.0f}/s with one pipeline ({one_seconds:.1f} s),"
        f" {rate:.0f}/s with {len(pipelines)} ({all_seconds:.1f} s)",
        flush=True,
    )
    return [
        {
            "case": case,
            "found": True,
            "num_streams": num_streams,
            "latency": {
                "cpu_seconds": search_seconds,
                "gap": path.gap,
                "num_stages": len(path.cuts),
            },
            "one": {"cpu_seconds": one_seconds, "gap": one.path.gap, "tokens_per_second": one_rate},
            "replicated": {
                "cpu_seconds": all_seconds,
                "num_pipelines": len(pipelines),
                "tokens_per_second": rate,
            },
        }
    ]


def timed(solve: Callable[[], Answer]) -> tuple[Answer, float]:
    """Return an answer and the CPU seconds that it took."""
    started = time.process_time()
    answer = solve()
    return answer, time.process_time() - started


if __name__ == "__main__":
    main()
