"""The unit that a model in this process computes on."""

from __future__ import annotations

import os
from dataclasses import dataclass

from potluck.engines.backends import BACKENDS, abilities_of, native_unit, unit_address
from potluck.engines.native import choose_isa
from potluck.errors import ParameterError, UsageError
from potluck.probe.all_layers import LAYERS
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.choose import check_asked, choose_units
from potluck.probe.cores import default_num_threads
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.probe.system import THIS_MACHINE
from potluck.types.hardware import Device
from potluck.types.memory import MemoryLimit
from potluck.types.unit import NATIVE, Role, UnitAddress, backend_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUnit:
    """A unit of this machine. ``memory`` is its own, None where it computes in the machine's."""

    address: UnitAddress
    memory: MemoryLimit | None = None


def find_unit(backend: str | None, *, isa: str | None, allow_software: bool = False) -> LocalUnit:
    """The first unit of this machine with ``backend`` that works; None is the native one.

    ``backend`` may name a unit as well (``pci-0000:01:00.0/tinygrad:CL``). Others than the native
    backend are tried on what the probe finds, or known from an earlier try; ``isa`` is the native
    one's. Software that plays a device is used with ``allow_software``, or if ``backend`` is its
    unit. Raises ``ParameterError`` for a backend that this build does not have, and ``UsageError``
    with the reasons where it works on nothing here.
    """
    name = backend_of(backend or NATIVE)
    if abilities_of(name).is_built_in:
        return LocalUnit(address=native_unit(choose_isa(isa)))
    spec = next((spec for spec in BACKENDS if spec.name == name), None)
    if spec is None:
        raise ParameterError(
            "backend",
            f"there is no backend {name}",
            hint=f"known: {', '.join(spec.name for spec in BACKENDS)}",
        )
    report = probe_node(
        THIS_MACHINE,
        ProbeOptions(
            backends=(spec,),
            num_threads=default_num_threads(),
            allow_software=allow_software,
            asked_backend=name,
        ),
        ProbeCache(default_cache_path(os.environ)),
        layers=LAYERS,
    )
    units = choose_units(report, asked=backend, allow_software=allow_software)
    try:
        check_asked(report, units, backend)
    except UsageError as error:
        if report.pending:
            raise
        # Its hint speaks of what was tried: this backend alone.
        hint = "without --backend the CPU computes; potluck probe says what works here"
        raise UsageError(error.message, hint=hint) from error
    chosen = next(unit for unit in units if unit.role is Role.SERVES)
    trial = next(trial for trial in report.trials if trial.unit_id == chosen.unit_id)
    device = next(device for device in report.devices if device.device_id == chosen.device_id)
    return LocalUnit(address=unit_address(trial, BACKENDS), memory=_own_memory(device))


def _own_memory(device: Device) -> MemoryLimit | None:
    num_bytes = device.own_free_bytes
    if num_bytes is None:
        return None
    return MemoryLimit(bytes=num_bytes, reason=f"free on {device.name}, by {device.memory.source}")
