"""Entry point: ``python -m potluck.cluster.worker FD AGENT_PID [TRANSFER_FD]``."""

from __future__ import annotations

import gc
import sys


def _main() -> int:
    # Nothing that imports create becomes garbage, so looking for it would be in vain: a tenth of
    # the time.
    gc.disable()
    from potluck.cluster.worker.process import run_worker

    gc.freeze()
    gc.enable()
    return run_worker(*map(int, sys.argv[1:4]))


if __name__ == "__main__":
    sys.exit(_main())
