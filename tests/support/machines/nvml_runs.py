"""Forks a process for each case it reads, which runs ``potluck.probe.children.nvml``."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import pynvml  # noqa: F401  # before the forks; it loads no library yet

from potluck.probe.children import nvml

_POLL_SECONDS = 0.002
_MAX_SECONDS = 30.0


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        runs = [_run(case, Path(directory)) for case in json.load(sys.stdin)]
    json.dump(runs, sys.stdout)


def _run(settings: dict[str, str], directory: Path) -> dict[str, object]:
    output, log = directory / "output", directory / "log"
    log.write_text("")
    child = os.fork()
    if child == 0:
        _be_child(settings, output, log)
    returncode = _wait(child, log)
    return {
        "returncode": returncode,
        "stdout": output.read_text(errors="surrogateescape"),
        "calls": [line for line in log.read_text().splitlines() if line != "hanging"],
    }


def _be_child(settings: dict[str, str], output: Path, log: Path) -> NoReturn:
    status = 1
    try:
        # As host.child_start does: descriptor 1 is the library's to print to.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.stdout = output.open("w")
        os.environ["FAKE_NVML_LOG"] = str(log)
        for name, text in settings.items():
            # Surrogates stand for bytes that are no UTF-8.
            os.environ[f"FAKE_NVML_{name.upper()}"] = text
        nvml.main()
        status = 0
    finally:
        # Without what the parent would do at its end, whether or not something was raised.
        os._exit(status)


def _wait(child: int, log: Path) -> int | None:
    """The child's end, as ``subprocess`` writes it; None if it hung in the library."""
    end = time.monotonic() + _MAX_SECONDS
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if log.read_text().endswith("hanging\n") or time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
