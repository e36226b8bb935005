"""Choose the unit of an in-process model."""

from __future__ import annotations

import os
from dataclasses import dataclass

from potluck.engines.backends import BACKENDS, abilities_of, native_unit, unit_address
from potluck.engines.native.engine import choose_isa
from potluck.errors import ParameterError, UsageError
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.choose import check_requested_unit_serves, choose_units
from potluck.probe.machine.cores import default_num_threads
from potluck.probe.machine.system import THIS_MACHINE
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.types.hardware import Device, ProbeReport
from potluck.types.memory import MemoryLimit
from potluck.types.unit import NATIVE, Role, UnitAddress, backend_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUnit:
    """A unit of this machine; ``memory`` is its own, or None if it uses the machine's memory."""

    address: UnitAddress
    memory: MemoryLimit | None = None


def find_unit(backend: str | None, *, isa: str | None, allow_software: bool = False) -> LocalUnit:
    """Return the first unit of this machine on which ``backend`` works, by default the native one.

    ``backend`` may also be a unit (``pci-0000:01:00.0/tinygrad:CL``). Backends other than the
    native one are tried on the devices that the probe finds, or known from an earlier trial;
    ``isa`` applies to the native backend. Software-emulated devices are used with
    ``allow_software``, or if ``backend`` is their unit. Raise ``ParameterError`` if this build does
    not have the backend, and ``UsageError`` with the reasons if it works on no device.
    """
    name = backend_of(backend or NATIVE)
    if abilities_of(name).is_built_in:
        return LocalUnit(address=native_unit(choose_isa(isa)))
    spec = next((spec for spec in BACKENDS if spec.name == name), None)
    if spec is None:
        raise ParameterError(
            "backend",
            f"unknown backend {name}",
            hint=f"known: {', '.join(spec.name for spec in BACKENDS)}",
        )
    report = probe_node(
        THIS_MACHINE,
        ProbeOptions(
            backends=(spec,),
            num_threads=default_num_threads(),
            allow_software=allow_software,
            requested_backend=name,
        ),
        ProbeCache(default_cache_path(os.environ)),
        detectors=DETECTORS,
    )
    units = choose_units(report, requested=backend, allow_software=allow_software)
    try:
        check_requested_unit_serves(report, units, backend)
    except UsageError as error:
        if report.pending:
            raise
        # The original hint only covers the backends that were tried, which is only this one.
        raise UsageError(error.message, hint=_hint(report, name)) from error
    chosen = next(unit for unit in units if unit.role is Role.SERVES)
    trial = next(trial for trial in report.trials if trial.unit_id == chosen.unit_id)
    device = next(device for device in report.devices if device.device_id == chosen.device_id)
    return LocalUnit(address=unit_address(trial, BACKENDS), memory=_own_memory(device))


def _hint(report: ProbeReport, backend: str) -> str:
    """Return the hint for a backend that works on no device that may be used, for callers in Python
    and on the command line.
    """
    emulated = {device.device_id for device in report.devices if device.is_software}
    trials = [trial for trial in report.trials if trial.device_id in emulated]
    if any(trial.works and trial.backend == backend for trial in trials):
        return "allow_software=True in Python, or --allow-software, enables software emulation"
    return "the CPU is used if no backend is given; potluck probe shows which backends work here"


def _own_memory(device: Device) -> MemoryLimit | None:
    num_bytes = device.own_free_bytes
    if num_bytes is None:
        return None
    return MemoryLimit(
        bytes=num_bytes, reason=f"free on {device.name}, according to {device.memory.source}"
    )
