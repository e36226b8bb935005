"""What the fake backends share. Each module beside this one is one backend."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from potluck.probe.cases import draw_case, program_case, self_test
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.hardware import Device, DeviceMemory
from potluck.types.unit import Interface

CALLS = "FAKE_BACKEND_CALLS"
"""Names a file that gets one line per command that a fake was given."""


def spec(name: str, *, api: str = "", is_software: bool = False) -> BackendSpec:
    return BackendSpec(
        name=name,
        module=f"support.engines.fake_backends.{name}",
        kinds=frozenset(DeviceKind),
        api=api,
        is_software=is_software,
    )


def device(
    device_id: str = "pci-0000:01:00.0",
    *,
    driver_version: str = "550",
    problem: str = "",
    interfaces: tuple[Interface, ...] = (),
    is_software: bool = False,
) -> Device:
    return Device(
        device_id=device_id,
        kind=DeviceKind.GPU,
        make="NVIDIA",
        name="RTX 4090",
        reported_name="NVIDIA GeForce RTX 4090",
        chip="10de:2684",
        driver="nvidia",
        device_files=(),
        memory=DeviceMemory(
            total_bytes=24 << 30, free_bytes=8 << 30, is_shared=False, source="a test"
        ),
        versions=(("driver", driver_version),),
        problem=problem,
        interfaces=interfaces,
        is_software=is_software,
    )


def note_call() -> list[str]:
    """Count this call, and return its arguments."""
    if path := os.environ.get(CALLS):
        with Path(path).open("a") as file:
            file.write(" ".join(sys.argv[1:]) + "\n")
    return sys.argv[1:]


def right_results() -> dict[str, list[list[float]]]:
    return {
        "q8_0": self_test.expected_products(self_test.FORMATS[0]),
        "q4_0": self_test.expected_products(self_test.FORMATS[1]),
        "softmax": self_test.expected_shares(),
        "program": program_case.expected_logits(),
        "draws": [[float(token) for token in draw_case.EXPECTED]],
    }


def say(document: dict[str, object]) -> None:
    print(json.dumps(document), flush=True)
