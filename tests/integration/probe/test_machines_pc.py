"""Machines with GPUs of AMD and Intel, through the real libudev and sysfs paths.

What is expected is read off the fixtures by hand; figures are ``probe.chips.derive``'s and are
tested there, so here only what they are made from.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from support.machines.umockdev import call_on_machine, find_devices

from potluck.probe.children.documents import IntelDocument
from potluck.probe.chips.derive import amd_figures, merge_figures
from potluck.probe.chips.lookup import table_figures
from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device, DeviceMemory, Figures
from potluck.types.unit import Interface


def kfd(rank: str, target: str) -> Interface:
    return Interface(api="kfd", address=rank, description=target)


XTX = Device(
    device_id="pci-0000:86:00.0",
    kind=DeviceKind.GPU,
    make="AMD",
    name="Radeon RX 7900 XTX",
    reported_name="AMD Radeon RX 7900 XTX",
    chip="gfx1100",
    driver="amdgpu",
    device_files=("/dev/dri/renderD128", "/dev/kfd"),
    memory=DeviceMemory(
        total_bytes=25_753_026_560,
        free_bytes=25_753_026_560 - 1_073_741_824,
        is_shared=False,
        source="amdgpu (mem_info_vram)",
    ),
    versions=(("firmware", "2140"), ("vbios", "113-D7020100-102")),
    interfaces=(kfd("0", "gfx1100"),),
)

MI210 = replace(
    XTX,
    device_id="pci-0000:43:00.0",
    name="Instinct MI210",
    reported_name="Instinct MI210",
    chip="gfx90a",
    device_files=("/dev/dri/renderD129", "/dev/kfd"),
    memory=replace(XTX.memory, total_bytes=68_702_699_520, free_bytes=68_702_699_520 - 11_513_856),
    versions=(("firmware", "92"), ("vbios", "113-D67301V-073")),
    interfaces=(kfd("1", "gfx90a"),),
)

SHARED = DeviceMemory(
    total_bytes=None,
    free_bytes=None,
    is_shared=True,
    source="shared system memory (/proc/meminfo)",
)

UHD_630 = Device(
    device_id="pci-0000:00:02.0",
    kind=DeviceKind.GPU,
    make="Intel",
    name="UHD Graphics 630",
    reported_name="CometLake-S GT2 [UHD Graphics 630]",
    chip="8086:9bc5",
    driver="i915",
    device_files=("/dev/dri/renderD128",),
    memory=replace(SHARED, total_bytes=16_179_980 * 1024, free_bytes=9_437_184 * 1024),
)

ARC_B580 = replace(
    UHD_630,
    device_id="pci-0000:03:00.0",
    name="Arc B580",
    reported_name="Battlemage G21 [Arc B580]",
    chip="8086:e20b",
    driver="xe",
    memory=DeviceMemory(
        total_bytes=12 << 30,
        free_bytes=None,
        is_shared=False,
        source="xe (physical_vram_size_bytes), which does not report free memory",
    ),
)

ALL_NAVI_31 = "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]"

MACHINES = {
    ("amd-desktop", "amd"): (XTX,),
    ("amd-apu", "amd"): (
        replace(
            XTX,
            device_id="pci-0000:c6:00.0",
            name="Radeon 780M",
            reported_name="AMD Radeon 780M Graphics",
            chip="gfx1103",
            memory=DeviceMemory(
                total_bytes=536_870_912 + 25_147_441_152,
                free_bytes=100_000_000 + 25_000_000_000,
                is_shared=True,
                source="amdgpu (mem_info_vram, mem_info_gtt), within /proc/meminfo",
            ),
            versions=(("firmware", "34"), ("vbios", "113-PHXGENERIC-001")),
            interfaces=(kfd("0", "gfx1103"),),
        ),
    ),
    ("amd-two-cards", "amd"): (
        MI210,
        replace(
            MI210,
            device_id="pci-0000:63:00.0",
            device_files=("/dev/dri/renderD128", "/dev/kfd"),
            memory=replace(MI210.memory, free_bytes=68_702_699_520 - 4_107_513_856),
            interfaces=(kfd("0", "gfx90a"),),
        ),
    ),
    ("amd-apu-and-card", "amd"): (
        replace(
            XTX,
            device_id="pci-0000:01:00.0",
            name="Radeon R9 Fury Series",
            reported_name="AMD Radeon R9 Fury Series",
            chip="1002:7300",
            device_files=("/dev/dri/renderD128",),
            memory=replace(XTX.memory, total_bytes=4 << 30, free_bytes=4_000_000_000),
            versions=(),
            interfaces=(),
        ),
        replace(
            XTX,
            device_id="pci-0000:0a:00.0",
            name="Radeon Vega 8",
            reported_name="AMD Radeon Vega 8 Graphics",
            chip="1002:15dd",
            device_files=("/dev/dri/renderD129", "/dev/kfd"),
            memory=DeviceMemory(
                total_bytes=(2 << 30) + (3 << 30),
                free_bytes=2_000_000_000 + 3_200_000_000,
                is_shared=True,
                source="amdgpu (mem_info_vram, mem_info_gtt), within /proc/meminfo",
            ),
            versions=(("firmware", "363"),),
            interfaces=(kfd("0", ""),),
        ),
    ),
    ("amd-no-driver", "amd"): (
        replace(
            XTX,
            device_id="pci-0000:03:00.0",
            name="Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M",
            reported_name=ALL_NAVI_31,
            chip="1002:744c",
            driver="",
            device_files=(),
            memory=DeviceMemory(
                total_bytes=None,
                free_bytes=None,
                is_shared=False,
                source="no size reported by a device without a driver",
            ),
            versions=(),
            problem="no kernel driver is bound to it",
            interfaces=(),
        ),
    ),
    ("intel-arc-xe", "intel"): (ARC_B580,),
    ("intel-arc-i915", "intel"): (
        replace(
            UHD_630,
            memory=replace(SHARED, total_bytes=65_536_000 * 1024, free_bytes=60_000_000 * 1024),
        ),
        replace(
            ARC_B580,
            name="Arc A770",
            reported_name="DG2 [Arc A770]",
            chip="8086:56a0",
            driver="i915",
            device_files=("/dev/dri/renderD129",),
            memory=replace(ARC_B580.memory, total_bytes=None, source="no size reported by i915"),
        ),
    ),
    ("intel-integrated", "intel"): (UHD_630,),
    ("intel-integrated", "amd"): (),
    ("amd-desktop", "intel"): (),
    ("pc-two-nvidia-one-amd", "amd"): (
        replace(
            XTX,
            device_id="pci-0000:03:00.0",
            device_files=("/dev/dri/renderD130", "/dev/kfd"),
            memory=replace(XTX.memory, free_bytes=25_700_000_000),
            versions=(("firmware", "2140"),),
        ),
    ),
    ("pc-two-nvidia-one-amd", "intel"): (),
    ("pc-container", "amd"): (
        replace(
            XTX,
            device_id="pci-0000:03:00.0",
            name="Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M",
            reported_name=ALL_NAVI_31,
            chip="1002:744c",
            device_files=("/dev/dri/renderD129",),
            memory=replace(XTX.memory, free_bytes=25_700_000_000),
            versions=(),
            problem="its device file /dev/dri/renderD129 is missing",
            interfaces=(),
        ),
    ),
    ("pc-container", "intel"): (
        replace(
            UHD_630,
            memory=replace(SHARED, total_bytes=32_614_808 * 1024, free_bytes=30_019_204 * 1024),
            problem="its device file /dev/dri/renderD128 is missing",
        ),
    ),
    ("empty-sys", "amd"): (),
    ("empty-sys", "intel"): (),
}


@pytest.mark.parametrize(("machine", "detector"), MACHINES)
def test_finds_what_is_in_the_machine(machine: str, detector: str) -> None:
    report = find_devices(machine, detector)
    assert report.detector == detector
    found = tuple(replace(device, figures=Figures()) for device in report.devices)
    assert found == MACHINES[machine, detector]
    assert report.problems == ()


def test_figures_are_made_from_kfd_and_then_from_the_table() -> None:
    (device,) = find_devices("amd-desktop", "amd").devices
    derived = amd_figures(
        simd_count=192,
        gfx_target_version=110000,
        max_engine_clock_hz=2_482_000_000,
        memory_width_bits=384,
        max_memory_clock_hz=1_249_000_000,
    )
    table = table_figures("AMD Radeon RX 7900 XTX", chip="gfx1100")
    assert device.figures == merge_figures(derived, table)
    # 96 compute units × 64 lanes × 2 × 2.482 GHz
    rate = device.figures.f32_operations_per_second.value
    assert rate == pytest.approx(30.498816e12)


def test_a_render_node_without_permission_is_said_to_be_the_problem() -> None:
    (device,) = find_devices("amd-desktop", "amd", forbidden=["/dev/dri/renderD128"]).devices
    assert device.problem == "no permission to use /dev/dri/renderD128"
    assert replace(device, problem="", figures=Figures()) == replace(XTX, interfaces=())


def test_an_integrated_gpu_without_permission_is_still_listed() -> None:
    (device,) = find_devices("intel-integrated", "intel", forbidden=["/dev/dri/renderD128"]).devices
    assert replace(device, figures=Figures()) == replace(
        UHD_630, problem="no permission to use /dev/dri/renderD128"
    )


def test_a_driver_that_does_not_answer_is_a_line_of_the_childs_document() -> None:
    """umockdev's device files know no ioctl of DRM."""
    answer = call_on_machine("intel-arc-i915", "potluck.probe.children.intel_memory:ask")
    document = msgspec.json.decode(answer, type=IntelDocument)
    assert document.cards == []
    assert [problem.partition(":")[0] for problem in document.problems] == [
        "i915 on 0000",
        "i915 on 0000",
    ]
