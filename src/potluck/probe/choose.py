"""Decide which of a node's units serve and which are held in reserve, and why. Pure.

The comparison uses measured rates of a small program through each backend (``Trial.rates``), never
a table or a guess: decode tokens per second, and if those are similar, prefill. The weights of that
program fit the last-level caches of some servers, which those of a model do not, so decoding on the
CPU counts at most as fast as it was measured to read weights from memory. Every unit gets a role
and, unless it serves without alternatives, a reason.

Of the devices that share one memory, the fastest serves, and the others are in reserve: a stage on
them would take memory that the first could use. The machine's own memory is that of the CPU, of
every device that shares it and of all software-emulated devices; every other device has its own.
Emulated devices compute on the CPU's cores and never serve in addition to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.errors import UsageError
from potluck.types.backend import DeviceKind
from potluck.types.hardware import TRIAL_BYTES, Device, Figure, Origin, ProbeReport, Trial
from potluck.types.quantities import format_number
from potluck.types.unit import ChosenUnit, Role

_ALIKE = 1.1
"""Repeated measurements of one unit on a machine with other load differ by this much."""

_ROLES = tuple(Role)

_NOTHING: Mapping[str, str] = {}


def choose_units(
    report: ProbeReport,
    *,
    requested: str | None,
    allow_software: bool,
    out: Mapping[str, str] = _NOTHING,
) -> tuple[ChosenUnit, ...]:
    """Return the role of every unit that was tried, the serving ones first, then by unit id.

    ``requested`` is a backend (``tinygrad:CL``) or a unit (``pci-0000:01:00.0/tinygrad:CL``); if it
    is given, only matching units serve. If none of them has ever worked, nothing serves
    (``check_requested_unit_serves`` raises the error); if they worked before and all of them are
    now in ``out``, the CPU replaces them. Emulated devices are used with ``allow_software``, or if
    ``requested`` is their unit. ``out`` maps the units that failed while in use to the reasons.
    """
    devices = {device.device_id: device for device in report.devices}
    units = [_Unit(devices[trial.device_id], trial) for trial in report.trials]
    found: list[ChosenUnit] = []
    usable: list[_Unit] = []
    has_requested, has_worked, has_pending = False, False, False
    for unit in sorted(units, key=lambda unit: unit.unit_id):
        is_allowed = allow_software or not unit.device.is_software or requested == unit.unit_id
        if unit.unit_id in out:
            has_worked |= unit.is_requested(requested)
            found.append(unit.chosen(Role.OUT, out[unit.unit_id]))
        elif unit.trial.is_pending:
            has_pending |= unit.is_requested(requested)
            found.append(unit.chosen(Role.PENDING, unit.trial.reason))
        elif not unit.trial.works:
            found.append(unit.chosen(Role.OUT, unit.trial.reason))
        elif not is_allowed:
            found.append(
                unit.chosen(
                    Role.IDLE, "software emulation on the CPU; enable with --allow-software"
                )
            )
        else:
            has_requested |= unit.is_requested(requested)
            usable.append(unit)
    takes_over = requested is not None and has_worked and not has_requested
    candidates = [
        unit for unit in usable if (unit.is_cpu if takes_over else unit.is_requested(requested))
    ]
    why = f"{requested} was requested"
    if not (has_requested or has_worked):
        why += ", but has not been tested yet" if has_pending else ", but does not work here"
    found += [unit.chosen(Role.IDLE, why) for unit in usable if unit not in candidates]
    is_forced = requested is not None and not takes_over
    chosen = _by_memory(candidates, is_forced=is_forced)
    if takes_over:
        reason = f"replaces {requested}, which failed"
        chosen = [replace(one, reason=reason) if one.role is Role.SERVES else one for one in chosen]
    found += chosen
    return tuple(sorted(found, key=lambda one: (_ROLES.index(one.role), one.unit_id)))


def check_requested_unit_serves(
    report: ProbeReport, units: Sequence[ChosenUnit], requested: str | None
) -> None:
    """Raise ``UsageError`` if a backend or unit was requested and nothing serves.

    ``units`` is the result of ``choose_units`` for ``report``. Pending units may still work.
    """
    if requested is None or any(unit.role is Role.SERVES for unit in units):
        return
    wanted = [unit for unit in units if requested in (unit.unit_id, unit.backend)]
    why = [f"{unit.unit_id}: {unit.reason}" for unit in wanted]
    pending = [each for each in wanted if each.role is Role.PENDING]
    unseen = [detector for detector in report.detectors if detector.is_pending]
    if pending or (unseen and not wanted):
        why += [
            f"{detector.detector}: {problem}"
            for detector in unseen
            for problem in detector.problems
        ]
        raise UsageError(
            f"{requested} has not been tested on this machine yet ({'; '.join(why)})",
            hint="run potluck probe --wait to test it, preferably when the machine is less busy",
        )
    works = [unit.unit_id for unit in units if unit.role not in (Role.PENDING, Role.OUT)]
    raise UsageError(
        f"{requested} does not work on any device of this machine"
        + (f" ({'; '.join(why)})" if why else ": there is no device that it supports"),
        hint=f"these work here: {', '.join(works) or 'none'}; potluck probe shows details",
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    device: Device
    trial: Trial

    @property
    def unit_id(self) -> str:
        return self.trial.unit_id

    @property
    def is_cpu(self) -> bool:
        return self.device.kind is DeviceKind.CPU

    @property
    def memory(self) -> str:
        """A key that units sharing one memory have in common; empty for the machine's own."""
        is_own = self.is_cpu or self.device.memory.is_shared or self.device.is_software
        return "" if is_own else self.device.device_id

    @property
    def decode(self) -> float | None:
        """Tokens per second of the small program; on the CPU, with its weights read from memory."""
        rate = self.trial.rates.decode_tokens_per_second.value
        read = self.trial.figures.read_bytes_per_second
        is_capped = self.is_cpu and read.origin is Origin.MEASURED
        if rate is None or read.value is None or not is_capped:
            return rate
        return min(rate, read.value / TRIAL_BYTES)

    @property
    def prefill(self) -> float | None:
        return self.trial.rates.prefill_tokens_per_second.value

    def is_requested(self, requested: str | None) -> bool:
        return requested is None or requested in (self.unit_id, self.trial.backend)

    def chosen(self, role: Role, reason: str = "") -> ChosenUnit:
        return ChosenUnit(
            unit_id=self.unit_id,
            device_id=self.device.device_id,
            backend=self.trial.backend,
            role=role,
            reason=reason,
        )


def _by_memory(units: Sequence[_Unit], *, is_forced: bool) -> list[ChosenUnit]:
    """Return the fastest unit of each memory, and the roles of the others."""
    found: list[ChosenUnit] = []
    first_of: dict[str, _Unit] = {}
    for memory in sorted({unit.memory for unit in units}):
        fastest: list[_Unit] = []
        for device_id in sorted({unit.device.device_id for unit in units if unit.memory == memory}):
            of_device = [unit for unit in units if unit.device.device_id == device_id]
            best = _fastest(of_device)
            fastest.append(best)
            found += [
                unit.chosen(Role.IDLE, _why_not(unit, best)) for unit in of_device if unit != best
            ]
        best = first_of[memory] = _fastest(fastest)
        found += [_beside(unit, best) for unit in fastest if unit != best]
    return found + _over_memories(first_of, is_forced=is_forced)


def _over_memories(first_of: Mapping[str, _Unit], *, is_forced: bool) -> list[ChosenUnit]:
    """Compare devices that have their own memory with those that use the machine's memory, and put
    the slower ones in reserve.
    """
    own = first_of.get("")
    if is_forced:
        return [
            unit.chosen(Role.SERVES, "" if unit.decode else _unmeasured(unit))
            for unit in first_of.values()
        ]
    found = []
    faster: list[_Unit] = []
    for memory, unit in first_of.items():
        if not memory:
            continue
        if unit.decode is None:
            found.append(unit.chosen(Role.RESERVE, _unmeasured(unit)))
        elif own is not None and own.decode is not None and _fastest([own, unit]) == own:
            beside = "the CPU" if own.is_cpu else own.unit_id
            reason = f"slower than {beside}: {_against(unit, own)}"
            found.append(unit.chosen(Role.RESERVE, reason))
        else:
            faster.append(unit)
            found.append(unit.chosen(Role.SERVES))
    if own is None:
        return found
    if faster:
        found.append(own.chosen(Role.RESERVE, _why_not(own, _fastest(faster))))
    elif own.decode is None:
        found.append(own.chosen(Role.SERVES if own.is_cpu else Role.RESERVE, _unmeasured(own)))
    else:
        found.append(own.chosen(Role.SERVES))
    return found


def _fastest(units: Sequence[_Unit]) -> _Unit:
    """Return the unit that decodes fastest; of those with similar speed, the one with the fastest
    prefill.

    Measured units come before others, then a CPU, then the first by name.
    """
    best = max(unit.decode or 0.0 for unit in units)
    alike = [unit for unit in units if (unit.decode or 0.0) * _ALIKE >= best]
    return min(
        alike, key=lambda u: (-(u.prefill or 0.0), -(u.decode or 0.0), not u.is_cpu, u.unit_id)
    )


def _beside(unit: _Unit, best: _Unit) -> ChosenUnit:
    """Return the role of a unit on another device that shares the memory of ``best``."""
    on_cores = unit.device.is_software or best.device.is_software
    reason = _why_not(unit, best, ", which uses the same memory")
    return unit.chosen(Role.IDLE if on_cores else Role.RESERVE, reason)


def _why_not(unit: _Unit, best: _Unit, ending: str = "") -> str:
    """Return ``12.3 tokens/s decode; cpu/native reaches 40`` and ``ending``, with prefill if it was
    decisive; or only why the unit has no rates.
    """
    if unit.decode is None:
        return _unmeasured(unit)
    text = f"{_number(unit.decode)} tokens/s decode"
    other = _number(best.decode)
    if _is_alike(unit, best):
        text += f" and {_number(unit.prefill)} prefill"
        other += f" and {_number(best.prefill)}"
    return f"{text}; {best.unit_id} reaches {other}{ending}"


def _against(unit: _Unit, best: _Unit) -> str:
    text = f"{_number(unit.decode)} against {_number(best.decode)} tokens/s"
    if _is_alike(unit, best):
        text += f", {_number(unit.prefill)} against {_number(best.prefill)} in prefill"
    return text


def _is_alike(unit: _Unit, best: _Unit) -> bool:
    return (unit.decode or 0.0) * _ALIKE >= (best.decode or 0.0)


def _unmeasured(unit: _Unit) -> str:
    """Return why the unit has no rates."""
    source = unit.trial.rates.decode_tokens_per_second.source
    return "not measured yet" if source == Figure().source else source


def _number(rate: float | None) -> str:
    """Format with three digits and no exponent: ``0.05``, ``3.1``, ``40``, ``1250``."""
    return "unknown" if rate is None else format_number(rate)
