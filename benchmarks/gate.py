"""Measure the time that the gate takes on a new machine: ``METHODOLOGY.md``, "Gate".

    python benchmarks/gate.py [--output benchmarks/results/gate.json] [--busy 0 0 0 2]

Each number of ``--busy`` is one run of ``.ci/run`` in a clone of HEAD, with an empty home and as
many processes beside it that only compute. Debian's packages have to be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from busy import busy
from circumstances import circumstances

ROOT = Path(__file__).parents[1]
_LEFT_OUT = ("CCACHE_", "POTLUCK_", "XDG_")
"""Prefixes of variables that would let a run reuse earlier results or behave differently."""


def main() -> int:
    """Run, print a line for each run, write the document; return 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 0, 0, 2])
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "schema": "potluck.benchmark.gate/1",
        **circumstances(),
        "num_cpus": os.cpu_count(),
        "runs": [],
    }
    for num_busy in arguments.busy:
        row = run_gate(num_busy)
        document["runs"].append(row)
        print(
            f"{num_busy} busy: {row['seconds']} s, {row['rest_seconds']} s of it without tests; "
            f"exit {row['exit']}, {len(row['flaky'])} flaky",
            flush=True,
        )
        if arguments.output:  # after each: all of them take hours
            arguments.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return int(any(row["exit"] for row in document["runs"]))


def run_gate(num_busy: int) -> dict[str, Any]:
    """Return how one run ended, its seconds, and those of each group of tests."""
    with tempfile.TemporaryDirectory(prefix="potluck-gate-") as folder:
        clone, home = Path(folder, "potluck"), Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)
        }
        with busy(num_busy), Path(folder, "log").open("w") as log:
            began = time.monotonic()
            code = subprocess.run(
                ["bash", ".ci/run"],
                cwd=clone,
                env={**environment, "HOME": str(home)},
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            ).returncode
            seconds = time.monotonic() - began
        path = clone / "build" / "gate" / "report.json"
        report = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if code:
            print("\n".join(Path(folder, "log").read_text("utf-8").splitlines()[-40:]))
    of_groups = sum(each["seconds"] for each in report.get("groups", ()))
    return {
        "num_busy": num_busy,
        "exit": code,
        "seconds": round(seconds, 1),
        "rest_seconds": round(seconds - of_groups, 1),
        "groups": report.get("groups", []),
        "flaky": report.get("flaky", []),
        "failed": report.get("failed", []),
    }


if __name__ == "__main__":
    sys.exit(main())
