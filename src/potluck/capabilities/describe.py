"""A node's report in a scheduler's words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potluck.engines.arithmetic import f16_support, int8_support
from potluck.probe.derive import merge_figures
from potluck.types.capabilities import (
    DeviceCapabilities,
    Flops,
    Source,
    Sources,
    Support,
)
from potluck.types.hardware import (
    Device,
    Figure,
    Figures,
    MemoryFacts,
    Origin,
    ProbeReport,
    Trial,
)
from potluck.types.unit import ChosenUnit, Role

_MIB = 1 << 20
_TERA = 1e12
_ROLES = tuple(Role)
_NO_BACKEND = "no backend of this build runs on it"


def describe_node(
    report: ProbeReport, model: str, units: Sequence[ChosenUnit]
) -> DeviceCapabilities:
    """The unit that serves on a node called ``model``, with all devices of it.

    ``report`` has a CPU at least; ``units`` are what ``choose_units`` makes of it. Of several that
    serve the one that decodes fastest stands for the node, and the CPU where none does.
    """
    trials = {trial.unit_id: trial for trial in report.trials}
    devices = []
    for device in report.devices:
        own = [unit for unit in units if unit.device_id == device.device_id]
        first = min(own, key=lambda unit: _ROLES.index(unit.role), default=None)
        trial = None if first is None else trials[first.unit_id]
        devices.append((_described(device, first, trial, report.memory, model), trial))
    serving = [pair for pair in devices if pair[0].role is Role.SERVES]
    node, _ = max(serving, key=lambda pair: _decode_rate(pair[1]), default=devices[0])
    return replace(node, devices=tuple(device for device, _ in devices))


def _decode_rate(trial: Trial | None) -> float:
    return 0.0 if trial is None else trial.rates.decode_tokens_per_second.value or 0.0


def _described(
    device: Device, unit: ChosenUnit | None, trial: Trial | None, memory: MemoryFacts, model: str
) -> DeviceCapabilities:
    """``unit`` is the first by role of the device's, and ``trial`` its trial."""
    is_run = trial is not None and trial.works
    figures = merge_figures(*([trial.figures] if trial else []), device.figures)
    reason = device.problem or (unit.reason if unit else _NO_BACKEND)
    not_run = Support(is_supported=False, reason=reason)
    backend = trial.backend if trial and is_run else ""
    usable, total = _memory(device, memory)
    return DeviceCapabilities(
        model=model,
        chip=device.name or device.reported_name or device.chip or "of unknown name",
        memory=_mebibytes(usable),
        total_memory=_mebibytes(total),
        flops=Flops(
            fp32=_tera(figures.f32_operations_per_second),
            fp16=_tera(figures.f16_operations_per_second),
            int8=_tera(figures.int8_operations_per_second),
        ),
        read_bytes_per_second=figures.read_bytes_per_second.value,
        f16=f16_support(backend) if backend else not_run,
        int8=int8_support(backend) if backend else not_run,
        sources=_sources(figures, usable, total),
        device_id=device.device_id,
        kind=device.kind,
        backend=backend,
        role=unit.role if unit else Role.OUT,
        reason=reason,
    )


def _memory(device: Device, machine: MemoryFacts) -> tuple[Figure, Figure]:
    """In bytes: what may still be taken, and all there is."""
    own = device.memory
    total = _told(own.total_bytes, own.source)
    if not own.is_shared:
        is_told = own.free_bytes is not None
        return _told(own.free_bytes, f"free ({own.source})" if is_told else own.source), total
    if machine.total_bytes == 0:  # nothing is known of it
        return _told(None, machine.usable.reason), total
    return _told(machine.usable.bytes, machine.usable.reason), total


def _told(num_bytes: int | None, source: str) -> Figure:
    if num_bytes is None:
        return Figure(source=source)
    return Figure(value=num_bytes, origin=Origin.DERIVED, source=source)


def _sources(figures: Figures, usable: Figure, total: Figure) -> Sources:
    return Sources(
        memory=_source(usable),
        total_memory=_source(total),
        fp32=_source(figures.f32_operations_per_second),
        fp16=_source(figures.f16_operations_per_second),
        int8=_source(figures.int8_operations_per_second),
        read_bytes_per_second=_source(figures.read_bytes_per_second),
    )


def _source(figure: Figure) -> Source:
    return Source(origin=figure.origin, text=figure.source)


def _mebibytes(figure: Figure) -> int | None:
    return None if figure.value is None else int(figure.value) // _MIB


def _tera(figure: Figure) -> float | None:
    return None if figure.value is None else figure.value / _TERA
