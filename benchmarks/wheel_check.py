"""Measure the cost of checking wheels: ``benchmarks/METHODOLOGY.md``, "Wheel check".

    PYTHONPATH=. python benchmarks/wheel_check.py --large WHEEL --own WHEEL --fleet FOLDER
        [--output benchmarks/results/wheel_check.json]

``--large`` is a wheel of about 150 MB, ``--own`` one of ours, ``--fleet`` a folder of which the
first 20 wheels are checked against 1,000 hosts. Medians of times and the greatest peak of memory go
to stdout, all samples to the document.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from circumstances import write_result
from command_line import documented_parser

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import cached_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.shipped import load_shipped_host, shipped_hosts
from potluck.portability.hosts.writing import host_document

_ROUNDS = 5
_NUM_HOSTS = 1000
_NUM_WHEELS = 20
_LEFT_OUT = 0.2
"""The fraction of its libraries that a host of the fleet lacks."""
_HOST = "ubuntu-22.04-x86_64"
_LAUNCHER = Path(__file__).with_name("measured_command.py")


def main() -> None:
    """Measure, print, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--large", type=Path, required=True)
    parser.add_argument("--own", type=Path, required=True)
    parser.add_argument("--fleet", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    samples = _commands({"large": arguments.large, "own": arguments.own})
    wheels = sorted(arguments.fleet.glob("*.whl"))[:_NUM_WHEELS]
    samples[f"{_NUM_HOSTS} hosts x {len(wheels)} wheels"] = _fleet(wheels)
    for name, taken in samples.items():
        wall = statistics.median(each.wall_seconds for each in taken)
        cpu = statistics.median(each.cpu_seconds for each in taken)
        print(f"{name:30} median {wall:.3f} s, of which computing {cpu:.3f} s{_peak(taken)}")
    results = {
        "bytes": {
            "large": arguments.large.stat().st_size,
            "own": arguments.own.stat().st_size,
        },
        "fleet_wheels": [wheel.name for wheel in wheels],
        "samples": {
            name: [dataclasses.asdict(each) for each in taken] for name, taken in samples.items()
        },
    }
    write_result(arguments.output, "potluck.benchmark.wheel_check/1", results, indent=1)


def _peak(taken: list[Taken]) -> str:
    peaks = [each.peak_bytes for each in taken if each.peak_bytes is not None]
    return f", peak {max(peaks) / 2**20:.0f} MiB" if peaks else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Time from begin to end, and that of cores which computed; the peak of the resident set of a
    command's process (``ru_maxrss``), None of what runs in this one.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int | None = None


def _commands(wheels: dict[str, Path]) -> dict[str, list[Taken]]:
    """Measure the command on each wheel, first with an empty cache and then with a full one."""
    samples: dict[str, list[Taken]] = {}
    for _ in range(_ROUNDS):
        for name, wheel in wheels.items():
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "full"):
                    samples.setdefault(f"{name}, {state}", []).append(_command(wheel, cache))
    return samples


def _command(wheel: Path, cache: str) -> Taken:
    command = [sys.executable, "-m", "potluck", "wheel", "check", str(wheel), "--host", _HOST]
    env = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run(
        [sys.executable, str(_LAUNCHER), *command],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    taken = json.loads(done.stdout)
    if taken.pop("exit_code") not in (0, 1):
        raise RuntimeError(done.stderr)
    return Taken(**taken)


def _fleet(wheels: list[Path]) -> list[Taken]:
    """Measure checks of all wheels on all hosts, with the needs of every wheel in the cache."""
    documents = _documents()
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            cached_needs(wheel, Path(folder))
        for _ in range(_ROUNDS):
            started, cpu = time.perf_counter(), time.process_time()
            prepared = [PreparedWheel(cached_needs(wheel, Path(folder))) for wheel in wheels]
            for document in documents:
                check = HostCheck(read_host(json.loads(document)))
                for each in prepared:
                    check.check(each)
            samples.append(
                Taken(
                    wall_seconds=time.perf_counter() - started,
                    cpu_seconds=time.process_time() - cpu,
                )
            )
    return samples


def _documents() -> list[str]:
    """Return hosts as JSON, no two alike."""
    drawn = random.Random(8)
    shipped = [load_shipped_host(name) for name in sorted(shipped_hosts())]
    documents = []
    for number in range(_NUM_HOSTS):
        host = shipped[number % len(shipped)]
        kept = tuple(each for each in host.libraries if drawn.random() >= _LEFT_OUT)
        documents.append(
            json.dumps(
                host_document(
                    dataclasses.replace(host, name=f"{host.name}-{number}", libraries=kept)
                )
            )
        )
    return documents


if __name__ == "__main__":
    main()
