"""What the probe adds to the description of a host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machines.doctor_cases import a_gpu, a_report

from potluck.portability.hosts.host import Host, HostGpu
from potluck.probe.node_host import hardware_of, with_hardware
from potluck.types.hardware import Device

BARE = Host(
    name="",
    origin="files",
    machine="x86_64",
    libc="glibc",
    libc_version=(2, 36),
    is_complete=True,
    libraries=(),
    other_libraries=frozenset(),
)


def described(host: Host, *devices: Device) -> Host:
    return with_hardware(host, hardware_of(a_report(*devices)))


def nvidia(*versions: tuple[str, str], name: str = "RTX 4090", **others: object) -> Device:
    return a_gpu("NVIDIA", name, "nvidia", versions=versions, **others)


def test_gpus_with_what_their_driver_can_do() -> None:
    card = nvidia(
        ("driver", "535.104.05"), ("vbios", "95.02"), ("CUDA", "12.2"), compute_capability=(8, 9)
    )
    mali = a_gpu("Arm Mali", "Mali-G610", "mali")
    host = described(BARE, card, mali)
    assert host == replace(
        BARE,
        name="box",
        cuda_driver=(535, 104, 5),
        cuda_version=(12, 2),
        gpus=(
            HostGpu(name="RTX 4090", compute_capability=(8, 9)),
            HostGpu(name="Mali-G610", compute_capability=None),
        ),
    )


def test_what_only_plays_a_gpu_or_has_no_driver_is_none() -> None:
    software = a_gpu("", "llvmpipe", "", is_software=True)
    assert described(BARE, software, a_gpu("NVIDIA", "Tesla T4", "")).gpus == ()


@pytest.mark.parametrize("version", ["", "535.x", "?", "12", "12.2.1"])
def test_what_the_files_told_stays_where_the_driver_says_nothing_else(version: str) -> None:
    host = replace(BARE, cuda_driver=(470, 82), cuda_version=(11, 4))
    versions = [("CUDA", version)] if version else []
    assert described(host, nvidia(*versions)).cuda_version == (11, 4)
    assert described(host, nvidia(("driver", "535.x"))).cuda_driver == (470, 82)


def test_an_amd_driver_is_not_nvidias() -> None:
    card = a_gpu("AMD", "RX 7900", "amdgpu", versions=(("driver", "6.3"),))
    assert described(BARE, card).cuda_driver is None
