"""Mutated bodies of every dialect, sent to an agent with the demo model.

    PYTHONPATH=src:tests python benchmarks/fuzz_http.py OUT.json [--cases 10000] [--seed 0]

Starts ``potluck up``, deploys the demo model, and sends so many bodies to the addresses of each
dialect (``support.http.documents``), each with something wrong about it
(``support.http.mutations.body_of``: a body is the same for the same dialect, seed and number). A
request fails that is answered with 500, whose stream ends with an internal error, or that has no
answer after 20 s. After each dialect all cache blocks must be free or kept for later prompts, and
the agent's log must have no traceback; otherwise, or if a request has failed, the command exits
with 1. The document has the failures, how often each status was answered, the slowest answer, and
the agent's resident memory before and after.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil
from circumstances import circumstances
from command_line import documented_parser
from support.cluster.agents import AgentProcess, Fleet
from support.http.documents import DOCUMENTS
from support.http.fuzzing import NUM_CLIENTS, SECONDS_PER_ANSWER, fuzz
from support.http.mutations import body_of
from support.processes.waiting import eventually

SCHEMA = "potluck.benchmark.fuzz_http/1"
MODEL = "demo"
MAX_FAILURES = 20
"""The limit for each client."""


def fuzz_dialect(agent: AgentProcess, dialect: str, num_cases: int, seed: int) -> dict[str, object]:
    """Send the bodies of one dialect, and check what they have left behind."""
    process = psutil.Process(agent.pid)
    before = process.memory_info().rss
    started = time.monotonic()
    port = int(agent.url.rsplit(":", 1)[1])
    requests = partial(body_of, seed, dialect=dialect, model=MODEL)
    fuzzed = fuzz(port, requests, 0, num_cases, max_failures=MAX_FAILURES)
    seconds = time.monotonic() - started
    problems = list(fuzzed.failures)
    try:
        eventually(
            lambda: agent.metric("potluck_kv_blocks", model=MODEL, state="used") == 0,
            within=20,
            what="all blocks are free",
        )
    except AssertionError as error:
        problems.append(str(error))
    if "Traceback" in agent.log:
        problems.append(agent.log[agent.log.index("Traceback") :][:2000])
    statuses = {str(status): count for status, count in sorted(fuzzed.statuses.items())}
    print(
        f"{dialect:12}{num_cases:7} bodies {len(problems):3} problems {seconds:7.1f} s,"
        f" slowest {fuzzed.slowest[0]:.2f} s, {statuses}",
        flush=True,
    )
    return {
        "num_cases": num_cases,
        "problems": problems,
        "statuses": statuses,
        "seconds": seconds,
        "slowest_answer": {"seconds": fuzzed.slowest[0], "number": fuzzed.slowest[1]},
        "resident_bytes": {"before": before, "after": process.memory_info().rss},
    }


def main() -> None:
    """Fuzz one dialect after the other, and write the document after each."""
    parser = documented_parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=int, default=10_000, help="of each dialect")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dialect", choices=sorted(DOCUMENTS), action="append")
    arguments = parser.parse_args()
    document: dict[str, object] = {
        "schema": SCHEMA,
        **circumstances(),
        "model": MODEL,
        "seed": arguments.seed,
        "num_clients": NUM_CLIENTS,
        "allowed_seconds": SECONDS_PER_ANSWER,
    }
    dialects: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as directory, Fleet(Path(directory)) as fleet:
        agent = fleet.start(1).await_up()
        agent.deploy(MODEL)
        for dialect in arguments.dialect or sorted(DOCUMENTS):
            dialects[dialect] = fuzz_dialect(agent, dialect, arguments.cases, arguments.seed)
            document["dialects"] = dialects
            arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if any(each["problems"] for each in dialects.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
