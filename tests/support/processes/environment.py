"""The environment of commands that tests run."""

from __future__ import annotations

import os

from support.machines.icds import NO_ICDS


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with ``changes``, without settings of Potluck and without OpenCL
    drivers: what this machine has would cost each process half a second."""
    kept = {name: value for name, value in os.environ.items() if "POTLUCK" not in name}
    return {**kept, **NO_ICDS, **changes}
