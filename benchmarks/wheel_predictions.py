"""Compare predictions for wheels with the dynamic linker: METHODOLOGY, "Wheel predictions".

    PYTHONPATH=. python benchmarks/wheel_predictions.py --wheels FOLDER
        [--output benchmarks/results/wheel_predictions.json] [--only warp-lang] [--roots NAME …]

Wheels are fetched through pip to FOLDER, roots are made in build/roots. One line for each wheel and
root goes to stdout, with each difference; everything goes to the JSON document, of which
``wheel_table.py`` makes docs/reference/wheel-predictions.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances
from command_line import documented_parser
from wheel_loads import Load, compare_loads, describe_root
from wheel_trials import fetch_wheel, wheel_trials

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import read_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from tools.roots.enter import Root
from tools.roots.loads import OPENED
from tools.roots.package_set import roots
from tools.roots.system import system
from tools.roots.wheel_site import SITE, unzip_wheel

_AUDITWHEEL = Path(__file__).parents[1] / "build" / "wheels" / "tools" / "bin" / "auditwheel"
"""auditwheel from the environment that builds our wheels."""
_AUDITWHEEL_SECONDS = 300
"""The time limit of auditwheel, which compares all pairs of a wheel's files."""
_SHOWN_DIFFERENCES = 5


def main() -> None:
    """Compare, print, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--roots", nargs="+", choices=list(roots()), default=list(roots()))
    arguments = parser.parse_args()
    systems = [system(name) for name in arguments.roots]
    checks = {root.name: HostCheck(describe_root(root)) for root in systems}
    document: dict[str, Any] = {
        "schema": "potluck.benchmark.wheel_predictions/1",
        **circumstances(),
        "roots": [
            {"name": name, "machine": each.host.machine, "libc_version": each.host.libc_version}
            for name, each in checks.items()
        ],
        "wheels": [],
    }
    for trial in wheel_trials():
        if arguments.only in trial.name:
            wheel = fetch_wheel(trial, arguments.wheels)
            document["wheels"].append(_row(wheel, systems, checks))
            if arguments.output:  # after each: all of them take long
                arguments.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _row(
    wheel: Path, systems: Sequence[Root], checks: Mapping[str, HostCheck]
) -> dict[str, object]:
    """Return the row of one wheel: its tags, and what each root does with it."""
    prepared = PreparedWheel(read_needs(wheel))
    results = {}
    files: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder)
        unzip_wheel(wheel, prefix)
        for root in systems:
            loads = compare_loads(prepared, prefix, root, checks[root.name])
            _print(wheel, root, loads)
            files = [load.file for load in loads]
            results[root.name] = _outcomes(loads)
    return {
        "wheel": wheel.name,
        "least": [each.platform for each in prepared.minima],
        "auditwheel": auditwheel_tag(wheel),
        "files": files,
        "results": results,
    }


def _outcomes(loads: Sequence[Load]) -> list[dict[str, object]]:
    """Return each distinct pair of predicted and real outcome, with the numbers of its files."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, load in enumerate(loads):
        own_path = f"{OPENED}/{SITE}/{load.file}: "
        numbers[load.predicted, load.real.removeprefix(own_path)].append(number)
    return [
        {"predicted": predicted, "real": real, "files": files}
        for (predicted, real), files in numbers.items()
    ]


def auditwheel_tag(wheel: Path) -> str:
    """Return the platform tag that ``auditwheel show`` assigns to a wheel, or ``none``."""
    command = [str(_AUDITWHEEL), "show", str(wheel)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_AUDITWHEEL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"not in {_AUDITWHEEL_SECONDS} s"
    found = re.search(r'following\s+platform\s+tag:\s+"([^"]+)"', done.stdout)
    return found[1] if found else "none"


def _print(wheel: Path, root: Root, loads: Sequence[Load]) -> None:
    differing = [load for load in loads if not load.is_as_predicted]
    num_real = sum(not load.real for load in loads)
    print(
        f"{wheel.name:70} {root.name:15} {num_real:3} of {len(loads):3} load, "
        f"{len(differing)} not as predicted",
        flush=True,
    )
    for load in differing[:_SHOWN_DIFFERENCES]:
        print(f"    {load.file}\n        predicted: {load.predicted}\n        real: {load.real}")


if __name__ == "__main__":
    main()
