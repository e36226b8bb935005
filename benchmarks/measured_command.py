"""Run a command, and print its time and memory as JSON in the last line of the output.

    python benchmarks/measured_command.py COMMAND [ARGUMENT...]

A process of its own does this because the peak of a child is never less than that of the process
that starts it, up to then: this one imports next to nothing. The output of the command goes to
stderr. The exit code is 0 even if the command fails; its own is in the JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time


def main() -> None:
    """Run it, measure, print."""
    started = time.perf_counter()
    done = subprocess.run(sys.argv[1:], stdout=sys.stderr, check=False)
    wall = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = {
        "wall_seconds": wall,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,  # Linux counts in KiB
        "exit_code": done.returncode,
    }
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
