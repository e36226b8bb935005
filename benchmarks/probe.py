"""Measure the cost of probing a machine: ``benchmarks/METHODOLOGY.md``, "Probe".

    python benchmarks/probe.py [--runs 9] [--output benchmarks/results/probe.json]
    python benchmarks/probe.py --busy 10 [--runs 5] [--compare PYTHON] [--output OUT.json]

Times of each detector, of the whole probe and of its parts on this machine, and the memory of an
agent that does nothing. With ``--busy`` instead: ``potluck probe`` and ``potluck doctor`` beside as
many processes that want a core each, in turns with those of another installation (``--compare``,
its Python) and with a plain program of 200 ms. Medians go to stdout, the JSON document with all
samples to the file.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from busy import busy
from circumstances import circumstances
from command_line import documented_parser
from processes import memory_bytes

from potluck.cluster.agent.asking import ask
from potluck.cluster.agent.state import StateDirectory
from potluck.engines.backends import BACKENDS
from potluck.errors import UsageError
from potluck.host.child import ChildFailure, run_child
from potluck.host.system import THIS_MACHINE
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.detectors.cpu import DETECTOR as CPU_DETECTOR

LOOKS_PER_RUN = 10
"""The number of runs in a sample: a detector takes only about a millisecond."""

AGENT_RUNS = 3
IDLE_SECONDS = 3.0
"""The time to wait after the agent has measured: until then, a child process runs."""

DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.1

_WORK = "import time\nwhile time.process_time() < 0.2: pass"

_IMPORT = """
import sys, time
def memory():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return [int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")]
before, started = memory(), time.perf_counter()
import potluck
seconds, after = time.perf_counter() - started, memory()
print(seconds, *after, *(new - old for new, old in zip(after, before)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure: ``samples`` in ``unit``."""

    name: str
    unit: str
    samples: tuple[float, ...]

    def document(self) -> dict[str, object]:
        """Return the samples as in the file, with their median."""
        median = statistics.median(self.samples)
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(median, 3),
            "samples": [round(sample, 3) for sample in self.samples],
        }


def main() -> None:
    """Measure everything, print medians, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES")
    parser.add_argument("--compare", metavar="PYTHON")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    start = circumstances()  # the load before, and not that of this script
    results = []
    if arguments.busy:
        pythons = [sys.executable, *([arguments.compare] if arguments.compare else [])]
        measured = _measure_beside(arguments.busy, pythons, arguments.runs)
    else:
        measured = _measure(arguments.runs)
    for result in measured:
        median = statistics.median(result.samples)
        spread = f"{min(result.samples):.4g} to {max(result.samples):.4g}"
        print(f"{result.name:40} {median:9.4g} {result.unit:4} ({spread})", flush=True)
        results.append(result.document())
    if arguments.output:
        document = {
            "schema": "potluck.benchmark.probe/1",
            **start,
            "num_cpus": os.cpu_count(),
            "results": results,
        }
        arguments.output.write_text(json.dumps(document) + "\n", encoding="utf-8")


def _measure(runs: int) -> Iterator[Result]:
    for detector in (CPU_DETECTOR, *DETECTORS):
        find = partial(detector.find, THIS_MACHINE)
        samples = [_look(find) for _ in range(runs + 1)]
        # The first imports what only a detector that finds something needs.
        yield Result(name=f"detector {detector.name}", unit="ms", samples=tuple(samples[1:]))
    with tempfile.TemporaryDirectory() as directory:
        empty = [Path(directory, str(number)) for number in range(runs)]
        cold = tuple(_run_probe(cache) for cache in empty)
        yield Result(name="potluck probe, nothing known", unit="ms", samples=cold)
        cached = tuple(_run_probe(empty[0]) for _ in range(runs))
        yield Result(name="potluck probe, all known", unit="ms", samples=cached)
    self_tests = tuple(_self_test() for _ in range(runs))
    yield Result(name="self-test of the CPU, its child", unit="ms", samples=self_tests)
    python = tuple(_seconds(_run, sys.executable, "-c", "") * 1e3 for _ in range(runs))
    yield Result(name="python without anything", unit="ms", samples=python)
    imports = [_import() for _ in range(runs)]
    names = ("time", "RSS with Python", "RssAnon with Python", "added RSS", "added RssAnon")
    for index, name in enumerate(names):
        yield Result(
            name=f"import potluck: {name}",
            unit="MiB" if index else "ms",
            samples=tuple(sample[index] for sample in imports),
        )
    agents = [_agent() for _ in range(AGENT_RUNS)]
    for index, name in enumerate(("RSS", "RssAnon")):
        yield Result(
            name=f"idle agent without HTTP: {name}",
            unit="MiB",
            samples=tuple(sample[index] for sample in agents),
        )


def _measure_beside(num_busy: int, pythons: Sequence[str], runs: int) -> Iterator[Result]:
    """Measure everything once per round: only ratios within a round are meaningful."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory, busy(num_busy):
        commands: dict[str, tuple[tuple[str, ...], str]] = {
            "200 ms of work": ((sys.executable, "-c", _WORK), directory)
        }
        for number, python in enumerate(pythons):
            whose = f" of {number}" if number else ""
            cache = str(Path(directory, str(number)))
            for command in ("probe", "doctor"):
                line: tuple[str, ...] = (python, "-m", "potluck", command)
                commands[f"potluck {command}{whose}"] = (line, cache)
                _timed(*line, cache=cache)  # from now on all is known
        for _ in range(runs):
            for name, (line, cache) in commands.items():
                seconds, cpu_seconds = _timed(*line, cache=cache)
                samples[name, "wall clock"].append(seconds * 1e3)
                samples[name, "CPU"].append(cpu_seconds * 1e3)
    for (name, clock), times in samples.items():
        yield Result(name=f"{name}, {num_busy} busy: {clock}", unit="ms", samples=tuple(times))


def _timed(*command: str, cache: str) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        command,
        env=_environment({"XDG_CACHE_HOME": cache}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,  # the doctor's exit code says what it found
    )
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _look(find: Callable[[], object]) -> float:
    """Return the mean milliseconds of a call."""
    started = time.perf_counter()
    for _ in range(LOOKS_PER_RUN):
        find()
    return (time.perf_counter() - started) * 1e3 / LOOKS_PER_RUN


def _run_probe(cache: Path) -> float:
    """Return the milliseconds of the command."""
    command = (sys.executable, "-m", "potluck", "probe")
    return _seconds(_run, *command, XDG_CACHE_HOME=str(cache)) * 1e3


def _self_test() -> float:
    """Return the milliseconds from before the start of the child to its answer."""
    (native,) = (backend for backend in BACKENDS if backend.name == "native")
    started = time.perf_counter()
    outcome = run_child(
        native.module,
        ("self-test", "cpu"),
        deadline_seconds=DEADLINE_SECONDS,
        max_resident_bytes=1 << 30,
    )
    if isinstance(outcome, ChildFailure):
        raise RuntimeError(outcome.reason)
    return (time.perf_counter() - started) * 1e3


def _import() -> list[float]:
    """Return the milliseconds, the process's MiB, and the MiB that the import has added."""
    seconds, *num_bytes = map(float, _run(sys.executable, "-c", _IMPORT).split())
    return [seconds * 1e3, *(each / 2**20 for each in num_bytes)]


def _agent() -> tuple[float, float]:
    """Return ``VmRSS`` and ``RssAnon``, in MiB, of an idle agent that has measured its node."""
    with tempfile.TemporaryDirectory() as directory:
        state = StateDirectory(Path(directory, "state"))
        command = (sys.executable, "-m", "potluck", "up", "--no-http", "--state", str(state.path))
        with subprocess.Popen(
            command,
            env=_environment({"XDG_CACHE_HOME": str(Path(directory, "cache"))}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as agent:
            try:
                _await_measured(state)
                time.sleep(IDLE_SECONDS)
                resident, anonymous = (
                    memory_bytes(agent.pid, field) / 2**20 for field in ("VmRSS", "RssAnon")
                )
            finally:
                agent.terminate()
    return resident, anonymous


def _await_measured(state: StateDirectory) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        try:
            *_, answer = ask(state.control_socket, "state", {})
        except UsageError:  # nobody answers yet
            continue
        trial = answer["result"]["nodes"][0]["hardware"]["trials"][0]
        if trial["figures"]["read_bytes_per_second"]["value"] is not None:
            return
    raise RuntimeError(f"the agent had not measured its CPU after {DEADLINE_SECONDS:g} s")


def _seconds(call: Callable[..., object], *arguments: str, **changes: str) -> float:
    started = time.perf_counter()
    call(*arguments, **changes)
    return time.perf_counter() - started


def _run(*command: str, **changes: str) -> str:
    done = subprocess.run(
        command, env=_environment(changes), capture_output=True, text=True, check=True
    )
    return done.stdout


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without Potluck's settings, with ``changes`` applied."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("POTLUCK_")}
    return {**kept, **changes}


if __name__ == "__main__":
    main()
