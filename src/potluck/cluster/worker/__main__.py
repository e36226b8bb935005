"""Entry point: ``python -m potluck.cluster.worker FD AGENT_PID``."""

from __future__ import annotations

import sys

from potluck.cluster.worker.process import run_worker

if __name__ == "__main__":
    sys.exit(run_worker(int(sys.argv[1]), int(sys.argv[2])))
