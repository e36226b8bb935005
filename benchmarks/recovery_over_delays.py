"""Time of a recovery over links with delay: ``benchmarks/METHODOLOGY.md``, "Recovery over delays".

    python benchmarks/recovery_over_delays.py [--delays 0 25 50] [--trials 8] [--output FILE]

Three agents, each on a host of its own, have a stage of the demo model each. A relay holds every
packet between them for so many milliseconds each way. A worker is killed, and the coordinator says
how long the deployment took until it was ready again. To compare two checkouts, run it with the
Python of each.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from circumstances import write_result
from command_line import documented_parser

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.cluster.agents import AgentProcess, Fleet, await_ready
from support.network.netns import require_namespaces
from support.network.relay import Link, Relay, relayed_lan
from support.processes.waiting import eventually

NUM_AGENTS = 3
WITHIN_SECONDS = 60.0


def main() -> None:
    """Measure, print the medians, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--delays", nargs="+", type=float, default=[0.0, 25.0, 50.0])
    parser.add_argument("--trials", type=int, default=8, help="of each delay")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    require_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        seconds = _measure(Path(folder), arguments.delays, arguments.trials)
    for delay, samples in seconds.items():
        median = statistics.median(samples)
        print(f"{delay:g} ms each way: ready again after {median:.3f} s (of {len(samples)})")
    results = {
        "recovery_seconds": {f"{delay:g}": samples for delay, samples in seconds.items()},
    }
    write_result(arguments.output, "potluck.benchmark.recovery-over-delays/1", results, indent=1)


def _measure(folder: Path, delays: list[float], num_trials: int) -> dict[float, list[float]]:
    with relayed_lan(NUM_AGENTS, seed=1) as relay, Fleet(folder) as fleet:
        first, *others = relay.hosts
        agents = [fleet.start(0, "--lan", host=first).await_up()]
        for number, host in enumerate(others, 1):
            agents.append(fleet.start(number, join=agents[0], host=host).await_up())
        fleet.await_members()
        agents[0].deploy(context=256, cache=1024)
        await_ready(agents[0], "demo")
        return {delay: _recoveries(relay, agents, delay, num_trials) for delay in delays}


def _recoveries(
    relay: Relay, agents: list[AgentProcess], delay: float, num_trials: int
) -> list[float]:
    relay.set_all(Link(delay_seconds=delay / 1000))
    samples: list[float] = []
    for trial in range(num_trials):
        before = agents[0].deployment("demo")
        assert before is not None
        (worker,) = agents[1 + trial % (NUM_AGENTS - 1)].workers()
        os.kill(worker, signal.SIGKILL)

        def is_again(num_before: int = before["num_recoveries"]) -> bool:
            now = agents[0].deployment("demo")
            return now is not None and now["num_recoveries"] > num_before

        eventually(is_again, within=WITHIN_SECONDS, what="the deployment is ready again")
        await_ready(agents[0], "demo")
        after = agents[0].deployment("demo")
        assert after is not None
        samples.append(after["recovery_seconds"])
    return samples


if __name__ == "__main__":
    main()
