"""Runs the programs of ``cpp/check``, which check parts of the core without Python."""

from __future__ import annotations

import subprocess

import pytest
from support.kernels.build import built_for_this_cpu


def run(name: str, *arguments: str) -> str:
    """Return what the program prints; fail the test with its complaint if it finds a mistake."""
    program = built_for_this_cpu(name)
    result = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if result.returncode != 0:
        pytest.fail(f"{name} {arguments}: {result.returncode} {result.stderr}")
    return result.stdout
