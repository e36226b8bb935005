"""Compare exact with fast arithmetic: METHODOLOGY, "Arithmetic".

    python benchmarks/arithmetic.py OUT.json MODEL [--prompt 512] [--decode 16] [--rounds 2]

Runs ``potluck bench MODEL`` with ``--arithmetic exact`` and ``fast`` in turns, each in a process of
its own, and compares the medians of all counted runs. Fails where this CPU has no fast products for
the model's weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from circumstances import circumstances

SCHEMA = "potluck.benchmark.arithmetic/1"
CHOICES = ("exact", "fast")
PHASES = ("prefill", "decode")


def bench(arguments: argparse.Namespace, choice: str) -> dict[str, Any]:
    """Run ``potluck bench`` once, and return its document."""
    command = [
        *(sys.executable, "-m", "potluck", "bench", arguments.model, "--json"),
        *("--arithmetic", choice, "--repeats", str(arguments.repeats)),
        *("--prompt", str(arguments.prompt), "--decode", str(arguments.decode)),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    if choice == "fast" and document["arithmetic"] == "exact":
        raise SystemExit(f"{document['isa']} has no fast products of these weights")
    return document


def median_rates(documents: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median tokens per second of each phase, over all counted runs."""
    return {
        phase: statistics.median(
            rate for each in documents for rate in each[f"{phase}_tokens_per_second"]
        )
        for phase in PHASES
    }


def main() -> None:
    """Measure alternately, print both and their ratio, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    record = {"schema": SCHEMA, **circumstances()}
    runs: dict[str, list[dict[str, Any]]] = {choice: [] for choice in CHOICES}
    for _ in range(arguments.rounds):
        for choice in CHOICES:
            runs[choice].append(bench(arguments, choice))
    rates = {choice: median_rates(documents) for choice, documents in runs.items()}
    ratios = {phase: rates["fast"][phase] / rates["exact"][phase] for phase in PHASES}
    for phase in PHASES:
        exact, fast = (rates[choice][phase] for choice in CHOICES)
        print(f"{phase}: exact {exact:.1f}, fast {fast:.1f} tokens/s, {ratios[phase]:.2f} times")
    document = {**record, "medians": rates, "fast_over_exact": ratios, "runs": runs}
    arguments.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
