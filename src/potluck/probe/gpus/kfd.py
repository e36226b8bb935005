"""The nodes of AMD's compute driver (KFD), as its topology appears in sysfs.

Source: the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``. A node is a socket of CPUs or a
GPU; in older kernels an APU is one node that is both. A node of a GPU that a container may not use
cannot be read. ``name`` is not used: for newer chips it says "ip discovery" for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.portability.hosts.amd_architectures import checked_gfx_target
from potluck.probe.gpus.pci_gpu import plausible_bytes
from potluck.probe.machine.system import System

_VENDOR_AMD = 0x1002

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
    return tuple(_gpu_nodes(system))


def _gpu_nodes(system: System) -> Iterator[KfdNode]:
    rank = 0
    directories = system.entries(system.sys / "class/kfd/kfd/topology/nodes")
    for directory in sorted(directories, key=lambda path: (len(path.name), path.name)):
        properties = _properties(system, directory / "properties")
        if properties.get("vendor_id") != _VENDOR_AMD or not properties.get("simd_count"):
            continue
        banks = [
            bank
            for entry in system.entries(directory / "mem_banks")
            if (bank := _properties(system, entry / "properties")).get("heap_type") in _FRAME_BUFFER
        ]
        yield KfdNode(
            rank=rank,
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
            max_memory_clock_hz=_hertz(max((b.get("mem_clk_max", 0) for b in banks), default=0)),
            firmware=properties.get("fw_version"),
        )
        rank += 1


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
