"""GPUs of AMD: cards and APUs, from what amdgpu, KFD and libdrm tell in files.

No library of AMD's is loaded: the files say all that is needed here, and the libraries want ROCm.
Sources: the kernel's ``Documentation/gpu/amdgpu`` and the code named below.

**APU or card.** No file in sysfs says it (the driver does, to programs that open the device:
``AMDGPU_IDS_FLAGS_FUSION``). A GPU counts as an APU if one of these holds:

- its KFD node has CPU cores, which is what KFD itself calls an APU (``kfd_topology.c``);
- its chip is one that exists in APUs only (``_APU_CHIPS``);
- its chip is gfx942 and its first PCI region is empty: a MI300A has no memory apart from the
  system's (``gmc_v9_0.c``), while the same chip on a MI300X has.

Where KFD tells nothing, a GPU counts as a card. For an APU that is then too little, and safe: the
part of the memory that the firmware has set aside for it is none that the kernel gives to the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from potluck.probe.boards import problem, shared_memory
from potluck.probe.chips import table_figures
from potluck.probe.derive import amd_figures, merge_figures
from potluck.probe.kfd import KfdNode, gpu_nodes
from potluck.probe.layer import Layer
from potluck.probe.names import normalize_name, printable
from potluck.probe.pci_gpu import (
    database_name,
    memory_bytes,
    module_version,
    render_nodes,
    why_unusable,
)
from potluck.probe.system import Access, PciDevice, RenderNode, System
from potluck.types.hardware import (
    Device,
    DeviceKind,
    DeviceMemory,
    Figures,
    Interface,
    LayerReport,
)

_VENDOR = 0x1002

_APU_CHIPS = re.compile(
    "gfx(700|703|705|801|810|902|909|90c|1013|1033|1035|1036|1103|1150|1151|1152|1153)"
)
"""Those that LLVM's "User Guide for AMDGPU Backend" lists as APU; for the newer ones the same as
where ``amdgpu_discovery.c`` sets ``AMD_IS_APU``."""

_IDS_FILES = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
"""Of the distribution, and of AMD's own packages."""


def _find(system: System) -> LayerReport:
    nodes, renders = gpu_nodes(system), render_nodes(system)
    devices: list[Device] = []
    for pci in system.pci_devices():
        if pci.vendor == _VENDOR and pci.is_display:
            devices += _devices(system, pci, renders.get(pci.path), nodes)
    no_compute = problem(system, "amdgpu", system.dev / "kfd") if nodes and devices else ""
    return LayerReport(
        layer=LAYER.name,
        devices=tuple(devices),
        problems=(f"ROCm cannot be used: {no_compute}",) if no_compute else (),
    )


def _devices(
    system: System, pci: PciDevice, render: RenderNode | None, nodes: tuple[KfdNode, ...]
) -> Iterator[Device]:
    """The GPU; or its partitions, if it is cut into some (MI300), each of which is a KFD node."""
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
    """The first of: the name in the card's EEPROM, which most lack; libdrm's; udev's database's."""
    return (
        printable(system.text(pci.path / "product_name") or "")
        or _libdrm_name(system, pci)
        or database_name(system, pci)
    )


def _libdrm_name(system: System, pci: PciDevice) -> str:
    """From libdrm's list, by device and revision; lines are ``744C,<tab>C8,<tab>AMD Radeon …``."""
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
    """What the firmware has set aside, and what the GPU may use of the machine's (GTT).

    GTT can be set to more than the machine has, so the machine's memory bounds it.
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
    """A partition's memory.

    What is used is told of the whole GPU only. All of it is taken off, so that no less is free.
    """
    if _has_no_own_memory(system, pci):
        return shared_memory(system)
    total, used = node.memory_bytes, memory_bytes(system, pci.path / "mem_info_vram_used")
    return DeviceMemory(
        total_bytes=total,
        free_bytes=None if total is None or used is None else max(0, total - used),
        is_shared=False,
        source="KFD (mem_banks), less all that the whole GPU uses (mem_info_vram_used)",
    )


def _is_apu(system: System, pci: PciDevice, node: KfdNode) -> bool:
    return (
        node.num_cpu_cores > 0
        or _APU_CHIPS.fullmatch(node.gfx_name) is not None
        or (node.gfx_name == "gfx942" and _has_no_own_memory(system, pci))
    )


def _has_no_own_memory(system: System, pci: PciDevice) -> bool:
    """Whether the first region, where a GPU shows its memory, is empty.

    Lines of ``resource`` are start, end and flags (``Documentation/PCI/sysfs-pci.rst``).
    """
    regions = (system.text(pci.path / "resource") or "").splitlines()
    try:
        return bool(regions) and [int(word, 16) for word in regions[0].split()] == [0, 0, 0]
    except ValueError:
        return False


def _why_no_size(pci: PciDevice) -> str:
    if pci.driver == "amdgpu":
        return "its driver amdgpu does not tell the size (mem_info_vram_total)"
    return f"no size is told by {pci.driver or 'a device without a driver'}"


def _figures(node: KfdNode | None, reported_name: str, chip: str) -> Figures:
    table = table_figures(reported_name, chip=chip)
    if node is None:
        return table
    derived = amd_figures(
        # The firmware of APUs counts parts that are switched off (ROCm/amdgpu, issue 127: 27
        # compute units on a chip with 8).
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
    """What is left; None if either is not known, or more is used than there is."""
    return None if total is None or used is None or used > total else total - used


def _at_most(limit: int | None, size: int | None) -> int | None:
    return size if limit is None or size is None else min(limit, size)


def _sum(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


LAYER = Layer(name="amd", find=_find)
