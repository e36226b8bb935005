"""What a fingerprint tells apart, and what it does not."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.engines.fake_backends.behaviour import device

from potluck.probe.fingerprint import Software, fingerprint, installed_software
from potluck.types.hardware import Device
from potluck.version import __version__

SOFTWARE = Software(kernel_release="6.1", potluck="0.1", core="c", packages=(("numpy", "2.0"),))
DEVICE = device()
MEMORY = dataclasses.replace(DEVICE.memory, free_bytes=1)


def key(*, of: Device = DEVICE, software: Software = SOFTWARE, subject: str = "trial/x") -> str:
    return fingerprint(subject, (of,), software)


def test_it_is_the_same_for_the_same() -> None:
    assert key() == key()
    assert key().startswith("trial/x/pci-0000:01:00.0/")


@pytest.mark.parametrize(
    "software",
    [
        dataclasses.replace(SOFTWARE, kernel_release="6.2"),
        dataclasses.replace(SOFTWARE, potluck="0.2"),
        dataclasses.replace(SOFTWARE, core="d"),
        dataclasses.replace(SOFTWARE, packages=(("numpy", "2.1"),)),
        dataclasses.replace(SOFTWARE, packages=(("numpy", ""),)),
    ],
)
def test_software_that_changes(software: Software) -> None:
    assert key(software=software) != key()


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(DEVICE, device_id="pci-0000:02:00.0"),
        dataclasses.replace(DEVICE, chip="10de:2685"),
        dataclasses.replace(DEVICE, make="AMD"),
        dataclasses.replace(DEVICE, driver="nouveau"),
        dataclasses.replace(DEVICE, versions=(("driver", "560"),)),
        dataclasses.replace(DEVICE, versions=()),
    ],
)
def test_devices_that_change(other: Device) -> None:
    assert key(of=other) != key()


@pytest.mark.parametrize(
    "same",
    [
        dataclasses.replace(DEVICE, memory=MEMORY),
        dataclasses.replace(DEVICE, device_files=("/dev/nvidia0",)),
    ],
)
def test_what_changes_from_moment_to_moment(same: Device) -> None:
    assert key(of=same) == key()


def test_versions_have_no_order() -> None:
    there = dataclasses.replace(DEVICE, versions=(("driver", "1"), ("firmware", "2")))
    back = dataclasses.replace(DEVICE, versions=(("firmware", "2"), ("driver", "1")))
    assert key(of=there) == key(of=back)


def test_several_devices_are_one_subject() -> None:
    other = device("pci-0000:02:00.0")
    assert fingerprint("q", (DEVICE, other), SOFTWARE) != fingerprint("q", (DEVICE,), SOFTWARE)
    assert fingerprint("q", (), SOFTWARE)


def test_the_software_of_this_machine() -> None:
    software = installed_software(("numpy", "no-such-package"))
    assert software.packages == (
        ("numpy", importlib.metadata.version("numpy")),
        ("no-such-package", ""),
    )
    assert software.kernel_release == os.uname().release
    assert software.potluck == __version__
    path, size, _ = software.core.rsplit(" ", 2)
    assert Path(path).name.startswith("_core.")
    assert Path(path).stat().st_size == int(size)


def test_it_is_found_without_loading_any_of_it() -> None:
    code = (
        "import sys; from potluck.probe.fingerprint import installed_software\n"
        "import potluck.probe.trials.running\n"
        "installed_software(('numpy',))\n"
        "print([m for m in ('numpy', 'potluck.kernels', 'potluck.engines') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert output == "[]\n"
