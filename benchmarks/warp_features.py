"""Verify predictions of Warp's features: ``benchmarks/METHODOLOGY.md``, "Warp's features".

    python benchmarks/warp_features.py WHEEL… [--output benchmarks/results/warp_features.json]

Each wheel of warp-lang that fits this machine is installed into a folder of its own, without
dependencies. What its files say, read without running anything, is compared with what Warp itself
returns and computes on the CPU, in a process of its own for each operation. Exit code 1 where they
differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from circumstances import circumstances
from command_line import documented_parser

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import read_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.cuda.fat_binary import CudaNeeds
from potluck.portability.features.rules import rules_for
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host
from potluck.portability.hosts.installed import describe_host

CHILD_SECONDS = 600.0

_TILES_ON_CPUS = "tile_matmul, tile_fft and tile_cholesky on CPUs"

CPU_OPERATIONS = {
    "kernel": {"kernels on CPUs"},
    "tile_matmul": {_TILES_ON_CPUS},
    "tile_cholesky": {_TILES_ON_CPUS},
    "tile_fft": {_TILES_ON_CPUS, "tile_fft and tile_ifft on CPUs"},
}
"""Operations that the child tries, and the features whose absence would predict that they fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for one wheel: its functions' results, CUDA code, and findings on a host."""

    version: str
    seconds: float
    verdict: Verdict
    returns: Mapping[str, int]
    toolkit: tuple[int, ...]
    gpu_code: Mapping[str, tuple[str, ...]]
    findings: tuple[Finding, ...]

    @property
    def missing(self) -> frozenset[str]:
        """The features that will not work."""
        return frozenset(each.feature for each in self.findings if each.severity is Severity.LIMIT)


class Ran(msgspec.Struct, frozen=True):
    """A child's result for one operation; fields that it did not report are empty."""

    result: str
    version: str = ""
    devices: tuple[str, ...] = ()
    returns: dict[str, int | None] = msgspec.field(default_factory=dict)


def main() -> int:
    """Predict, run, compare; print a line for each comparison, and write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rules = rules_for("warp-lang")
    if rules is None:
        raise LookupError("there are no rules for warp-lang")
    host = describe_host(name="this machine")
    functions = (*rules.functions, *rules.toolkit_functions)
    cases = [_case(wheel, host, functions) for wheel in arguments.wheels]
    document = {**circumstances(), "wheels": cases}
    if arguments.output:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(case["agrees"] for case in cases) else 1


def _case(wheel: Path, host: Host, functions: tuple[str, ...]) -> dict[str, object]:
    prediction = predict(wheel, host)
    ran = _run(wheel, functions)
    differences = _differences(prediction, ran)
    print(f"{wheel.name}: predicted in {prediction.seconds:.2f} s")
    for difference in differences:
        print(f"  differs: {difference}")
    return {
        "wheel": wheel.name,
        "agrees": not differences,
        "differences": differences,
        "predicted": asdict(prediction),
        "ran": {name: msgspec.to_builtins(each) for name, each in ran.items()},
    }


def predict(wheel: Path, host: Host) -> Prediction:
    """Return what the wheel's files contain, and what that implies on ``host``."""
    started = time.perf_counter()
    needs = read_needs(wheel)
    prepared = PreparedWheel(needs)
    report = HostCheck(host).check(prepared)
    facts = [each.facts for each in needs.objects if each.facts]
    return Prediction(
        version=prepared.build.version,
        seconds=time.perf_counter() - started,
        verdict=report.verdict,
        returns={name: number for each in facts for name, number in each.results.items()},
        toolkit=prepared.build.toolkit,
        gpu_code={each.path: _architectures(each.cuda) for each in needs.objects if each.cuda},
        findings=report.findings,
    )


def _architectures(needs: CudaNeeds) -> tuple[str, ...]:
    codes = sorted({code for module in needs.modules for code in module.codes})
    return tuple(f"{code.kind} {code.capability[0]}.{code.capability[1]}" for code in codes)


def _run(wheel: Path, functions: tuple[str, ...]) -> dict[str, Ran]:
    """Install the wheel, run every operation in a child process, and return the results."""
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        subprocess.run([*install, "--target", folder, wheel], check=True)
        paths = [folder, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "WARP_CACHE_PATH": str(Path(folder) / "kernels"),
        }
        return {name: _run_one(name, functions, environment) for name in CPU_OPERATIONS}


def _run_one(operation: str, functions: tuple[str, ...], environment: Mapping[str, str]) -> Ran:
    completed = subprocess.run(
        [sys.executable, "-m", "warp_child", operation, *functions],
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    if completed.returncode != 0:
        last = (completed.stderr.strip().splitlines() or ["no output"])[-1]
        return Ran(result=f"exit code {completed.returncode}: {last}")
    return msgspec.json.decode(completed.stdout.strip().splitlines()[-1], type=Ran)


def _differences(prediction: Prediction, ran: Mapping[str, Ran]) -> list[str]:
    found = []
    for operation, features in CPU_OPERATIONS.items():
        answer = ran[operation]
        works = answer.result == "right"
        if works is bool(features & prediction.missing):
            found.append(f"{operation}: {answer.result}")
        for name, number in answer.returns.items():
            if number != prediction.returns.get(name):
                found.append(f"{name}() returned {number}, not {prediction.returns.get(name)}")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
