"""Convert a node's report to the form that schedulers use. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.probe.chips.derive import merge_figures
from potluck.types.capabilities import (
    DeviceCapabilities,
    Flops,
    Source,
    Sources,
    Support,
)
from potluck.types.hardware import Device, Figure, Figures, Origin, ProbeReport, Trial
from potluck.types.memory import MemoryFacts
from potluck.types.unit import ChosenUnit, Role

_MIB = 1 << 20
_TERA = 1e12
_ROLES = tuple(Role)
_NO_BACKEND = "no backend in this build supports it"
_NOT_YET = "not tried yet"
_SOFTWARE = "software-emulated: use allow_software to enable it"

_UNKNOWN = Support(is_supported=False, reason="not documented for this backend in this build")

_TINYGRAD = "tinygrad:"

# No backend multiplies in f16: sums of thousands of products are float32 everywhere, so that
# neither weights nor activations overflow.
_F16: Mapping[str, Support] = {
    "native": Support(
        is_supported=True, reason="weights stay f16, and are multiplied and summed in f32"
    ),
    _TINYGRAD: Support(
        is_supported=True,
        reason="weights stay f16 on the device, even if it has no native f16, and are"
        " multiplied and summed in f32",
    ),
}

# 8-bit weights with a scale per group (Q8_0).
_INT8: Mapping[str, Support] = {
    "native": Support(
        is_supported=True,
        reason="Q8_0 weights stay packed; activations are quantized to int8, and sums of products "
        "are exact",
    ),
    _TINYGRAD: Support(
        is_supported=True,
        reason="Q8_0 weights stay packed on the device, and are multiplied and summed in f32",
    ),
}


def describe_node(
    report: ProbeReport,
    model: str,
    units: Sequence[ChosenUnit],
    waiting: Collection[str] = (),
) -> DeviceCapabilities:
    """Return the capabilities of a node called ``model``, and of all of its devices.

    ``report`` has at least a CPU, and ``units`` is the result of ``choose_units`` for it. The
    node's capabilities are those of the serving unit that decodes fastest, or of the CPU if none
    serves. ``waiting`` has the ids of devices on which a backend has not been tried yet.
    """
    trials = {trial.unit_id: trial for trial in report.trials}
    best = []
    for device in report.devices:
        own = [unit for unit in units if unit.device_id == device.device_id]
        if own:
            unit = min(own, key=lambda unit: _ROLES.index(unit.role))
            reason = device.problem or unit.reason
            best.append(_Best(role=unit.role, reason=reason, trial=trials[unit.unit_id]))
        else:
            reason = _untried(device, is_waiting=device.device_id in waiting)
            best.append(_Best(role=Role.OUT, reason=reason))
    devices = tuple(
        _described(device, one, report.memory, model)
        for device, one in zip(report.devices, best, strict=True)
    )
    serving = [index for index, one in enumerate(best) if one.role is Role.SERVES]
    fastest = max(serving, key=lambda index: best[index].decode_rate, default=0)
    return replace(devices[fastest], devices=devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best unit of a device by role, or the reason why there is none."""

    role: Role
    reason: str
    trial: Trial | None = None

    @property
    def decode_rate(self) -> float:
        if self.trial is None:
            return 0.0
        return self.trial.rates.decode_tokens_per_second.value or 0.0


def _untried(device: Device, *, is_waiting: bool) -> str:
    if device.problem:
        return device.problem
    if is_waiting:
        return _NOT_YET
    return _SOFTWARE if device.is_software else _NO_BACKEND


def _described(device: Device, best: _Best, memory: MemoryFacts, model: str) -> DeviceCapabilities:
    trial = best.trial
    figures = merge_figures(*([trial.figures] if trial else []), device.figures)
    backend = trial.backend if trial and trial.works else ""
    not_run = Support(is_supported=False, reason=best.reason)
    usable, total = _memory(device, memory)
    return DeviceCapabilities(
        model=model,
        chip=device.name or device.reported_name or device.chip or "unknown model",
        memory=_mebibytes(usable),
        total_memory=_mebibytes(total),
        flops=Flops(
            fp32=_tera(figures.f32_operations_per_second),
            fp16=_tera(figures.f16_operations_per_second),
            int8=_tera(figures.int8_operations_per_second),
        ),
        read_bytes_per_second=figures.read_bytes_per_second.value,
        f16=_support(_F16, backend) if backend else not_run,
        int8=_support(_INT8, backend) if backend else not_run,
        sources=_sources(figures, usable, total),
        device_id=device.device_id,
        kind=device.kind,
        is_software=device.is_software,
        backend=backend,
        role=best.role,
        reason=best.reason,
    )


def _memory(device: Device, machine: MemoryFacts) -> tuple[Figure, Figure]:
    """Return the available and the total memory in bytes."""
    own = device.memory
    total = _figure(own.total_bytes, own.source)
    if not own.is_shared:
        is_known = own.free_bytes is not None
        return _figure(own.free_bytes, f"free ({own.source})" if is_known else own.source), total
    if machine.total_bytes == 0:  # unknown
        return _figure(None, machine.usable.reason), total
    return _figure(machine.usable.bytes, machine.usable.reason), total


def _figure(num_bytes: int | None, source: str) -> Figure:
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


def _support(by_kind: Mapping[str, Support], backend: str) -> Support:
    """Return whether a unit of ``backend`` runs models in the format of ``by_kind``, and how."""
    kind = _TINYGRAD if backend.startswith(_TINYGRAD) else backend
    return by_kind.get(kind, _UNKNOWN)
