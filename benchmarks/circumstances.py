"""The circumstances of a run that are needed to repeat it; every result file begins with them."""

from __future__ import annotations

import json
import os
import platform
import ssl
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path


def circumstances() -> dict[str, object]:
    """Time, command, commit, CPU, load, kernel and Python of the script that runs."""
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", script, *sys.argv[1:]],
        "commit": _git("rev-parse", "HEAD"),
        "is_modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cpu": _cpu_name(),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write_result(
    path: Path | None, schema: str, results: Mapping[str, object], *, indent: int | None = None
) -> None:
    """Write a result file of ``schema`` with the current circumstances, unless ``path`` is None."""
    if path is not None:
        document = {"schema": schema, **circumstances(), **results}
        path.write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")


def edge_circumstances(warm_up_rounds: int) -> dict[str, object]:
    """Return what affects measurements of edges in addition to ``circumstances``."""
    return {
        "num_cpus": os.cpu_count(),
        "openssl": ssl.OPENSSL_VERSION,
        "warm_up_rounds": warm_up_rounds,
    }


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    root = Path(__file__).parent
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def _cpu_name() -> str:
    """Return the name of the first CPU, or the architecture if the system reports none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
