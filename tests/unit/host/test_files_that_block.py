"""Pipes, sockets and devices in the place of files that the probe reads: nothing waits for them."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from potluck.host.boards import machine_name
from potluck.host.cores import cache_bytes
from potluck.host.system import System, read_regular_file
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.cache import ProbeCache
from potluck.probe.detectors.cpu import DETECTOR as CPU_DETECTOR
from potluck.probe.doctor.case import read_distribution
from potluck.probe.probe import files_report

_PCI = "sys/devices/pci0000:00/0000:0{}:00.0"
_FILES = {
    **{
        f"{_PCI.format(number)}/{name}": text
        for number, (vendor, driver) in enumerate(
            (("0x10de", "nvidia"), ("0x1002", "amdgpu"), ("0x8086", "i915"))
        )
        for name, text in (
            ("vendor", vendor),
            ("device", "0x2684"),
            ("class", "0x030000"),
            ("uevent", f"DRIVER={driver}"),
            ("mem_info_vram_total", "1000000000"),
            ("mem_info_vram_used", "1000"),
        )
    },
    "sys/devices/platform/13000000.mali/uevent": "DRIVER=mali\nOF_COMPATIBLE_0=arm,mali-valhall",
    "sys/devices/platform/13000000.mali/gpuinfo": "Mali-G610 4 cores r0p0 0xA867",
    "sys/class/kgsl/kgsl-3d0/gpu_model": "Adreno640v1",
    "sys/class/kgsl/kgsl-3d0/max_gpuclk": "585000000",
    "sys/devices/virtual/kfd/kfd/topology/nodes/0/properties": "simd_count 8",
    "sys/devices/virtual/kfd/kfd/topology/nodes/0/gpu_id": "1",
    "sys/devices/system/cpu/cpu0/cache/index3/level": "3",
    "sys/devices/system/cpu/cpu0/cache/index3/size": "32768K",
    "sys/devices/system/cpu/cpu0/cache/index3/type": "Unified",
    "sys/devices/virtual/dmi/id/product_name": "A machine",
    "proc/cpuinfo": "processor : 0\nmodel name : A CPU",
    "proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 900000 kB",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05",
    "proc/device-tree/model": "A board",
    "files/etc/OpenCL/vendors/pocl.icd": "libpocl.so.2",
    "files/etc/os-release": "ID=debian",
    "cache/probe.json": "{}",
}
_LINKS = {
    **{f"sys/bus/pci/devices/0000:0{number}:00.0": _PCI.format(number) for number in range(3)},
    "sys/bus/platform/devices/13000000.mali": "sys/devices/platform/13000000.mali",
    "sys/class/misc/mali0/device": "sys/devices/platform/13000000.mali",
}


def _make(root: Path, blocking: set[str]) -> None:
    for path, text in _FILES.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if path in blocking:
            os.mkfifo(file)
        else:
            file.write_text(text)
    for path, target in _LINKS.items():
        link = root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(root / target)


def _read_everything(root: Path) -> None:
    system = System(sys=root / "sys", proc=root / "proc", dev=root / "dev", files=root / "files")
    for detector in (CPU_DETECTOR, *DETECTORS):
        detector.queries(system, detector.find(system))
    files_report(system)
    read_distribution(system)
    machine_name(system)
    cache_bytes(system, (0,))
    cache = ProbeCache(root / "cache/probe.json")
    cache.get("a")
    cache.put("a", {})


def _ends(call: Callable[[], None], seconds: float = 10.0) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.slow
def test_no_pipe_in_the_place_of_a_file_is_waited_for(tmp_path: Path) -> None:
    """Each by itself, as what is not read of one may hide another, and all together."""
    for blocking in (*({path} for path in _FILES), set(_FILES)):
        _make(tmp_path, blocking)
        assert _ends(lambda: _read_everything(tmp_path)), blocking


def test_the_files_of_this_test_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would show nothing."""
    seen: set[str] = set()

    def note(path: Path, flags: int, *rest: int) -> int:
        seen.add(str(path).removeprefix(f"{tmp_path}/"))
        return opened(path, flags, *rest)

    opened = os.open
    monkeypatch.setattr(os, "open", note)
    _make(tmp_path, set())
    _read_everything(tmp_path)
    for link, target in _LINKS.items():
        seen |= {path.replace(link, target) for path in seen}
    unread = {path for path in _FILES if path not in seen}
    assert len(unread) < len(_FILES) / 4, unread


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "directory"])
def test_what_is_no_regular_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "device":
        path = Path("/dev/tty")
    else:
        path.mkdir()
    with pytest.raises(OSError, match="is not a regular file") as caught:
        read_regular_file(path, 10)
    assert caught.value.errno == errno.EINVAL


def test_a_regular_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert read_regular_file(path, 4) == b"0123"
    assert read_regular_file(Path("/proc/self/comm"), 100)
