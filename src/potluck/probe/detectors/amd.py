"""AMD's GPUs, cards and APUs, from files of amdgpu, KFD and libdrm.

No AMD library is loaded: the files contain everything that is needed here, and the libraries
require ROCm. Sources: the kernel's ``Documentation/gpu/amdgpu`` and the code named below.

**APU or card.** No file in sysfs shows it (the driver reports it to programs that open the device:
``AMDGPU_IDS_FLAGS_FUSION``). A GPU counts as an APU if one of these holds:

- its KFD node has CPU cores, which is KFD's own definition of an APU (``kfd_topology.c``);
- its chip exists only in APUs (``_APU_CHIPS``);
- its chip is gfx942 and its first PCI region is empty: a MI300A has no memory apart from the
  system's (``gmc_v9_0.c``), while the same chip on a MI300X has.

Without information from KFD, a GPU counts as a card. For an APU this underestimates the memory,
which is safe: the kernel does not use the memory that the firmware has set aside for the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.host.boards import problem, shared_memory
from potluck.host.system import Access, PciDevice, RenderNode, System, printable
from potluck.portability.hosts.amd_architectures import checked_gfx_target
from potluck.probe.chips.derive import amd_figures, merge_figures
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detector import Detector
from potluck.probe.gpus.pci_gpu import (
    database_name,
    memory_bytes,
    module_version,
    plausible_bytes,
    render_nodes,
    why_unusable,
)
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory, Figures
from potluck.types.unit import Interface

_VENDOR = 0x1002

_APU_CHIPS = re.compile(
    "gfx(700|703|705|801|810|902|909|90c|1013|1033|1035|1036|1103|1150|1151|1152|1153)"
)
"""Chips that LLVM's "User Guide for AMDGPU Backend" lists as APU; for newer chips this agrees with
``AMD_IS_APU`` in ``amdgpu_discovery.c``."""

_IDS_FILES = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
"""The paths of the distribution's and of AMD's own packages."""


_MAX_32_BITS = (1 << 32) - 1

_FRAME_BUFFER = (1, 2)
"""``heap_type`` of the GPU's own memory (``kfd_crat.h``: public, private); 0 is the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU, or a partition of one, as KFD describes it; None means unknown.

    ``memory_bytes`` is the part of the GPU's memory that KFD makes available. For a partition it is
    an equal share; for an APU, newer kernels count the system's memory. ``num_cpu_cores`` is above
    0 if the description comes from the firmware of an APU. ``rank`` is its index, from 0, among the
    nodes that compute, with which programs select it.

    Source: the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``. A node is a socket of CPUs
    or a GPU; in older kernels an APU is one node that is both. A node of a GPU that a container may
    not use cannot be read. ``name`` is not used: for newer chips it says "ip discovery" for all of
    them.
    """

    rank: int
    num_cpu_cores: int
    simd_count: int
    gfx_target_version: int
    domain: int
    location_id: int
    render_minor: int
    max_engine_clock_hz: int | None
    memory_bytes: int | None
    memory_width_bits: int | None
    max_memory_clock_hz: int | None
    firmware: int | None

    @property
    def gfx_name(self) -> str:
        """The target's name, such as ``gfx1100`` for 110000; empty if it is not a chip version."""
        return checked_gfx_target(self.gfx_target_version)

    def is_at(self, address: str) -> bool:
        """Return whether it is on the PCI device ``address``, ignoring the function.

        ``location_id`` encodes bus and device in 16 bits as PCI does. For a partition, the bits of
        the function, which is always 0 for a GPU, or bits 28 to 31 in newer kernels, contain its
        number.
        """
        try:
            domain, bus, slot = address.partition(".")[0].split(":")
            place = int(bus, 16) << 8 | int(slot, 16) << 3
            return self.domain == int(domain, 16) and self.location_id & 0xFFF8 == place
        except ValueError:
            return False


def gpu_nodes(system: System) -> tuple[KfdNode, ...]:
    """Return AMD's nodes that compute, by KFD's number."""
    nodes: list[KfdNode] = []
    directories = system.entries(system.sys / "class/kfd/kfd/topology/nodes")
    for directory in sorted(directories, key=lambda path: (len(path.name), path.name)):
        properties = _properties(system, directory / "properties")
        if properties.get("vendor_id") != _VENDOR or not properties.get("simd_count"):
            continue
        banks = [
            bank
            for entry in system.entries(directory / "mem_banks")
            if (bank := _properties(system, entry / "properties")).get("heap_type") in _FRAME_BUFFER
        ]
        memory_clock = max((bank.get("mem_clk_max", 0) for bank in banks), default=0)
        node = KfdNode(
            rank=len(nodes),
            num_cpu_cores=properties.get("cpu_cores_count", 0),
            simd_count=properties["simd_count"],
            gfx_target_version=properties.get("gfx_target_version", 0),
            domain=properties.get("domain", 0),
            location_id=properties.get("location_id", 0),
            render_minor=properties.get("drm_render_minor", 0),
            max_engine_clock_hz=_hertz(properties.get("max_engine_clk_fcompute")),
            memory_bytes=plausible_bytes(sum(bank.get("size_in_bytes", 0) for bank in banks))
            or None,
            memory_width_bits=max((bank.get("width", 0) for bank in banks), default=0) or None,
            max_memory_clock_hz=_hertz(memory_clock),
            firmware=properties.get("fw_version"),
        )
        nodes.append(node)
    return tuple(nodes)


def _properties(system: System, file: Path) -> Mapping[str, int]:
    """Parse lines like ``simd_count 192``. Only sizes and unique ids have more than 32 bits."""
    values: dict[str, int] = {}
    for line in (system.text(file) or "").splitlines():
        name, _, digits = line.partition(" ")
        if digits.isdecimal() and len(digits) <= 20:
            value = int(digits)
            if value <= _MAX_32_BITS or name == "size_in_bytes":
                values[name] = value
    return values


def _hertz(megahertz: int | None) -> int | None:
    """Return None for 0, which means unknown, and for values above 10 GHz."""
    if not megahertz or megahertz > 10_000:
        return None
    return megahertz * 1_000_000


def _find(system: System) -> DetectorReport:
    nodes, renders = gpu_nodes(system), render_nodes(system)
    devices: list[Device] = []
    for pci in system.pci_devices():
        if pci.vendor == _VENDOR and pci.is_display:
            devices += _devices(system, pci, renders.get(pci.path), nodes)
    no_compute = problem(system, "amdgpu", system.dev / "kfd") if nodes and devices else ""
    return DetectorReport(
        detector=DETECTOR.name,
        devices=tuple(devices),
        problems=(f"ROCm cannot be used: {no_compute}",) if no_compute else (),
    )


def _devices(
    system: System, pci: PciDevice, render: RenderNode | None, nodes: tuple[KfdNode, ...]
) -> Iterator[Device]:
    """Return the GPU, or its partitions if it has some (MI300), each of which is a KFD node."""
    mine = [node for node in nodes if node.is_at(pci.address) or _has_file(node, render)]
    if len(mine) < 2:
        node = mine[0] if mine else None
        file = None if render is None else render.device_file
        yield _device(system, pci, node, file, f"pci-{pci.address}", _memory(system, pci, node))
        return
    for number, node in enumerate(mine):
        file = system.dev / "dri" / f"renderD{node.render_minor}"
        device_id = f"pci-{pci.address}-partition-{number}"
        yield _device(system, pci, node, file, device_id, _share(system, pci, node))


def _has_file(node: KfdNode, render: RenderNode | None) -> bool:
    return render is not None and render.name == f"renderD{node.render_minor}"


def _device(
    system: System,
    pci: PciDevice,
    node: KfdNode | None,
    file: Path | None,
    device_id: str,
    memory: DeviceMemory,
) -> Device:
    reported_name = _reported_name(system, pci)
    chip = (node.gfx_name if node else "") or pci.ids
    files = [] if file is None else [str(file)]
    return Device(
        device_id=device_id,
        kind=DeviceKind.GPU,
        make="AMD",
        name=normalize_name(reported_name) or pci.ids,
        reported_name=reported_name,
        chip=chip,
        driver=pci.driver,
        device_files=(*files, str(system.dev / "kfd")) if node else tuple(files),
        memory=memory,
        figures=_figures(node, reported_name, chip),
        versions=_versions(system, pci, node),
        problem=why_unusable(system, pci.driver, file),
        interfaces=_interfaces(system, node),
    )


def _interfaces(system: System, node: KfdNode | None) -> tuple[Interface, ...]:
    if node is None or system.access(system.dev / "kfd") is not Access.USABLE:
        return ()
    return (Interface(api="kfd", address=str(node.rank), description=node.gfx_name),)


def _reported_name(system: System, pci: PciDevice) -> str:
    """Return the name in the card's EEPROM, which most lack, or else libdrm's or udev's."""
    return (
        printable(system.text(pci.path / "product_name") or "")
        or _libdrm_name(system, pci)
        or database_name(system, pci)
    )


def _libdrm_name(system: System, pci: PciDevice) -> str:
    """Return the name in libdrm's list by device and revision.

    Lines have the form ``744C,<tab>C8,<tab>AMD Radeon …``.
    """
    revision = system.number(pci.path / "revision")
    for name in _IDS_FILES:
        for line in (system.text(system.files / name) or "").splitlines():
            device_id, _, rest = line.partition(",")
            revision_id, _, product = rest.partition(",")
            try:
                if (int(device_id, 16), int(revision_id, 16)) == (pci.device, revision):
                    return printable(product)
            except ValueError:  # comments, and the line with the version of the list
                continue
    return ""


def _memory(system: System, pci: PciDevice, node: KfdNode | None) -> DeviceMemory:
    vram = memory_bytes(system, pci.path / "mem_info_vram_total")
    free = _less(vram, memory_bytes(system, pci.path / "mem_info_vram_used"))
    if node is not None and _is_apu(system, pci, node):
        return _apu_memory(system, pci, vram, free)
    return DeviceMemory(
        total_bytes=vram or None,
        free_bytes=free if vram else None,
        is_shared=False,
        source="amdgpu (mem_info_vram)" if vram else _why_no_size(pci),
    )


def _apu_memory(
    system: System, pci: PciDevice, vram: int | None, free_vram: int | None
) -> DeviceMemory:
    """Return the memory that the firmware reserved for the GPU, plus the part of the machine's
    memory that the GPU may use (GTT).

    GTT can be set to more than the machine has, so it is limited to the machine's memory.
    """
    machine = shared_memory(system)
    if _has_no_own_memory(system, pci):
        return machine
    gtt = memory_bytes(system, pci.path / "mem_info_gtt_total")
    free_gtt = _less(gtt, memory_bytes(system, pci.path / "mem_info_gtt_used"))
    total = _sum(vram, _at_most(machine.total_bytes, gtt))
    return DeviceMemory(
        total_bytes=total or None,
        free_bytes=_sum(free_vram, _at_most(machine.free_bytes, free_gtt)) if total else None,
        is_shared=True,
        source="amdgpu (mem_info_vram, mem_info_gtt), within /proc/meminfo"
        if total
        else _why_no_size(pci),
    )


def _share(system: System, pci: PciDevice, node: KfdNode) -> DeviceMemory:
    """Return a partition's memory.

    The used memory is only reported for the whole GPU. All of it is subtracted, so that the free
    memory is never overestimated.
    """
    if _has_no_own_memory(system, pci):
        return shared_memory(system)
    total, used = node.memory_bytes, memory_bytes(system, pci.path / "mem_info_vram_used")
    return DeviceMemory(
        total_bytes=total,
        free_bytes=None if total is None or used is None else max(0, total - used),
        is_shared=False,
        source="KFD (mem_banks), less the use of the whole GPU (mem_info_vram_used)",
    )


def _is_apu(system: System, pci: PciDevice, node: KfdNode) -> bool:
    return (
        node.num_cpu_cores > 0
        or _APU_CHIPS.fullmatch(node.gfx_name) is not None
        or (node.gfx_name == "gfx942" and _has_no_own_memory(system, pci))
    )


def _has_no_own_memory(system: System, pci: PciDevice) -> bool:
    """Return whether the first region, through which a GPU exposes its memory, is empty.

    Lines of ``resource`` are start, end and flags (``Documentation/PCI/sysfs-pci.rst``).
    """
    regions = (system.text(pci.path / "resource") or "").splitlines()
    try:
        return bool(regions) and [int(word, 16) for word in regions[0].split()] == [0, 0, 0]
    except ValueError:
        return False


def _why_no_size(pci: PciDevice) -> str:
    if pci.driver == "amdgpu":
        return "its driver amdgpu does not report the size (mem_info_vram_total)"
    return f"no size reported by {pci.driver or 'a device without a driver'}"


def _figures(node: KfdNode | None, reported_name: str, chip: str) -> Figures:
    table = table_figures(reported_name, chip=chip)
    if node is None:
        return table
    derived = amd_figures(
        # The firmware of APUs counts disabled units (ROCm/amdgpu, issue 127: 27 compute units on a
        # chip with 8).
        simd_count=None if node.num_cpu_cores else node.simd_count,
        gfx_target_version=node.gfx_target_version,
        max_engine_clock_hz=node.max_engine_clock_hz,
        memory_width_bits=node.memory_width_bits,
        max_memory_clock_hz=node.max_memory_clock_hz,
    )
    return merge_figures(derived, table)


def _versions(system: System, pci: PciDevice, node: KfdNode | None) -> tuple[tuple[str, str], ...]:
    versions = {
        "driver": module_version(system, pci.driver),
        "firmware": str(node.firmware) if node and node.firmware else "",
        "vbios": printable(system.text(pci.path / "vbios_version") or ""),
    }
    return tuple((name, version) for name, version in versions.items() if version)


def _less(total: int | None, used: int | None) -> int | None:
    """Return the difference; None if either is unknown, or if more is used than exists."""
    return None if total is None or used is None or used > total else total - used


def _at_most(limit: int | None, size: int | None) -> int | None:
    return size if limit is None or size is None else min(limit, size)


def _sum(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


DETECTOR = Detector(name="amd", find=_find)
