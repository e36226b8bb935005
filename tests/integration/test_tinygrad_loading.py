"""Loading onto a device takes the weights and a little, and a process what its cost says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.kernels.build import not_shown
from support.processes.held_memory import held_bytes, peak_until_output
from support.tinygrad.needs import what_is_missing

from potluck.engines.tinygrad.backend import TinygradCost

MIB = 2**20
WEIGHTS_MIB = 300
MARGIN_BYTES = 8 * MIB
"""What the peak may be above weights and staging: of PoCL's memory for commands, and Python's."""


@pytest.mark.parametrize("device", ["CPU", "CL"])
def test_the_peak_is_the_weights_and_a_little(device: str) -> None:
    """On both devices what is called the device's memory is the host's, so that all is seen."""
    missing = what_is_missing(device)
    if missing:
        not_shown(missing)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DEV": device}
    command = [sys.executable, "-m", "support.tinygrad.loading_child", str(WEIGHTS_MIB)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environ, "PARALLEL": "0"},
        bufsize=0,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        status = os.open(f"/proc/{child.pid}/status", os.O_RDONLY)
        try:
            before = held_bytes(status)
            child.stdin.write(b"\n")
            loading_peak = peak_until_output(status, child.stdout) - before
            sizes = json.loads(child.stdout.readline())
            child.stdin.write(b"\n")
            whole_peak = peak_until_output(status, child.stdout)
            assert child.stdout.readline() == b"done\n"
            child.stdin.write(b"\n")
            assert child.stdout.readline() == b"freed\n"
            freed = whole_peak - held_bytes(status)
        finally:
            os.close(status)
        child.stdin.close()
    assert child.returncode == 0
    weights, staging = sizes["weights"], sizes["staging"]
    assert staging <= 16 * MIB
    assert weights <= loading_peak <= weights + staging + MARGIN_BYTES
    assert whole_peak - weights <= TinygradCost().process_bytes
    assert freed >= weights
