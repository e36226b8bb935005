"""The capabilities of a machine that umockdev plays: its devices, with no backend to try."""

from __future__ import annotations

from potluck.capabilities.describe import describe_node
from potluck.host.boards import machine_name
from potluck.host.system import System
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.cache import ProbeCache
from potluck.probe.choose import choose_units
from potluck.probe.probe import ProbeOptions, probe_node


def describe(system: System) -> dict[str, object]:
    """``to_dict()`` of the machine's capabilities, in a child of ``support.machines.umockdev``."""
    options = ProbeOptions(backends=(), num_threads=1)
    report = probe_node(system, options, ProbeCache(None), detectors=DETECTORS)
    units = choose_units(report, requested=None, allow_software=False)
    return describe_node(report, machine_name(system) or "unnamed", units).to_dict()
