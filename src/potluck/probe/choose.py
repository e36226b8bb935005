"""Which of a node's units serve, which wait, and why. Pure.

What is compared is what a small program really reached through each backend (``Trial.rates``),
never a table and never a guess: tokens per second of decoding, and where those are alike, of
prefill. Every unit gets a role and, unless it serves without rivals, a line of reason.

Of the devices that draw on one memory, the fastest serves, and the others are in reserve: a stage
there takes memory that the first could use. The machine's own memory is that of the CPU, of every
device that shares it and of all software that plays a device; every other device has its own.
Software that plays a device computes on the CPU's cores and never stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.errors import UsageError
from potluck.types.hardware import Device, DeviceKind, Figure, ProbeReport, Trial
from potluck.types.unit import ChosenUnit, Role

_ALIKE = 1.1
"""Rates of one unit, measured twice on a machine that does other things too, differ by as much."""

_ROLES = tuple(Role)

_NOTHING: Mapping[str, str] = {}


def choose_backend(
    device: Device, trials: Sequence[Trial], *, asked: str | None, allow_software: bool
) -> tuple[ChosenUnit, ...]:
    """The roles of one device's backends, were it the only device of the node.

    The fastest serves and the others are idle. What is not measured is not used before what is;
    if nothing is, a CPU serves and any other device is in reserve. See ``choose_units``.
    """
    own = [trial for trial in trials if trial.device_id == device.device_id]
    return _choose([_Unit(device, trial) for trial in own], asked, allow_software, _NOTHING)


def choose_units(
    report: ProbeReport,
    *,
    asked: str | None,
    allow_software: bool,
    out: Mapping[str, str] = _NOTHING,
) -> tuple[ChosenUnit, ...]:
    """The role of every unit that was tried, the serving ones first, then by unit id.

    ``asked`` is a backend (``tinygrad:CL``) or a unit (``pci-0000:01:00.0/tinygrad:CL``): then no
    others serve. If none of them has ever worked, nothing serves (``check_asked`` says so as an
    error); where they worked and are all in ``out`` now, the CPU takes their place. Software that
    plays a device is used with ``allow_software``, or if ``asked`` is its unit. ``out`` has the
    units that failed while they were used, with reasons.
    """
    devices = {device.device_id: device for device in report.devices}
    units = [_Unit(devices[trial.device_id], trial) for trial in report.trials]
    return _choose(units, asked, allow_software, out)


def check_asked(report: ProbeReport, units: Sequence[ChosenUnit], asked: str | None) -> None:
    """Raise ``UsageError`` if a backend or unit was asked for, and nothing serves.

    ``units`` are what ``choose_units`` makes of ``report``. What is pending may work.
    """
    if asked is None or any(unit.role is Role.SERVES for unit in units):
        return
    wanted = [unit for unit in units if asked in (unit.unit_id, unit.backend)]
    why = [f"{unit.unit_id}: {unit.reason}" for unit in wanted]
    pending = [each for each in wanted if each.role is Role.PENDING]
    unseen = [layer for layer in report.layers if layer.is_pending]
    if pending or (unseen and not wanted):
        why += [f"{layer.layer}: {problem}" for layer in unseen for problem in layer.problems]
        raise UsageError(
            f"{asked} is not tested yet on this machine ({'; '.join(why)})",
            hint="potluck probe --wait tests it, best when the machine is less busy",
        )
    works = [unit.unit_id for unit in units if unit.role not in (Role.PENDING, Role.OUT)]
    raise UsageError(
        f"{asked} works on no device of this machine"
        + (f" ({'; '.join(why)})" if why else ": there is none that it is tried on"),
        hint=f"works here: {', '.join(works) or 'nothing'}; potluck probe says more",
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
        """Equal for units that draw on one memory; empty is the machine's own."""
        is_own = self.is_cpu or self.device.memory.is_shared or self.device.is_software
        return "" if is_own else self.device.device_id

    @property
    def decode(self) -> float | None:
        return self.trial.rates.decode_tokens_per_second.value

    @property
    def prefill(self) -> float | None:
        return self.trial.rates.prefill_tokens_per_second.value

    def is_asked(self, asked: str | None) -> bool:
        return asked is None or asked in (self.unit_id, self.trial.backend)

    def chosen(self, role: Role, reason: str = "") -> ChosenUnit:
        return ChosenUnit(
            unit_id=self.unit_id,
            device_id=self.device.device_id,
            backend=self.trial.backend,
            role=role,
            reason=reason,
        )


def _choose(
    units: Sequence[_Unit], asked: str | None, allow_software: bool, out: Mapping[str, str]
) -> tuple[ChosenUnit, ...]:
    found: list[ChosenUnit] = []
    usable: list[_Unit] = []
    has_asked, has_worked, has_pending = False, False, False
    for unit in sorted(units, key=lambda unit: unit.unit_id):
        is_allowed = allow_software or not unit.device.is_software or asked == unit.unit_id
        if unit.unit_id in out:
            has_worked = has_worked or unit.is_asked(asked)
            found.append(unit.chosen(Role.OUT, out[unit.unit_id]))
        elif unit.trial.is_pending:
            has_pending = has_pending or unit.is_asked(asked)
            found.append(unit.chosen(Role.PENDING, unit.trial.reason))
        elif not unit.trial.works:
            found.append(unit.chosen(Role.OUT, unit.trial.reason))
        elif not is_allowed:
            found.append(unit.chosen(Role.IDLE, "software on the CPU: --allow-software uses it"))
        else:
            has_asked = has_asked or unit.is_asked(asked)
            usable.append(unit)
    takes_over = asked is not None and has_worked and not has_asked
    candidates = [unit for unit in usable if (unit.is_cpu if takes_over else unit.is_asked(asked))]
    why = f"{asked} was asked for"
    if not (has_asked or has_worked):
        why += ", and is not tested yet" if has_pending else ", and works nowhere here"
    found += [unit.chosen(Role.IDLE, why) for unit in usable if unit not in candidates]
    is_forced = asked is not None and not takes_over
    chosen = _by_memory(candidates, is_forced=is_forced)
    if takes_over:
        reason = f"takes the place of {asked}, which is out"
        chosen = [replace(one, reason=reason) if one.role is Role.SERVES else one for one in chosen]
    found += chosen
    return tuple(sorted(found, key=lambda one: (_ROLES.index(one.role), one.unit_id)))


def _by_memory(units: Sequence[_Unit], *, is_forced: bool) -> list[ChosenUnit]:
    """The fastest unit of each memory, and what becomes of the others."""
    found: list[ChosenUnit] = []
    first_of: dict[str, _Unit] = {}
    for memory in sorted({unit.memory for unit in units}):
        fastest: list[_Unit] = []
        for device_id in sorted({unit.device.device_id for unit in units if unit.memory == memory}):
            of_device = [unit for unit in units if unit.device.device_id == device_id]
            best = _fastest(of_device)
            fastest.append(best)
            found += [_idle(unit, best) for unit in of_device if unit != best]
        best = first_of[memory] = _fastest(fastest)
        found += [_beside(unit, best) for unit in fastest if unit != best]
    return found + _over_memories(first_of, is_forced=is_forced)


def _over_memories(first_of: Mapping[str, _Unit], *, is_forced: bool) -> list[ChosenUnit]:
    """Devices with memory of their own against the machine's: what is slower is in reserve."""
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
            reason = f"slower than {beside} beside it: {_against(unit, own)}"
            found.append(unit.chosen(Role.RESERVE, reason))
        else:
            faster.append(unit)
            found.append(unit.chosen(Role.SERVES))
    if own is None:
        return found
    if faster:
        reason = _unmeasured(own) if own.decode is None else _slower(own, _fastest(faster))
        found.append(own.chosen(Role.RESERVE, reason))
    elif own.decode is None:
        found.append(own.chosen(Role.SERVES if own.is_cpu else Role.RESERVE, _unmeasured(own)))
    else:
        found.append(own.chosen(Role.SERVES))
    return found


def _fastest(units: Sequence[_Unit]) -> _Unit:
    """The one that decodes fastest; of those that are like it, the one with the fastest prefill.

    What is measured comes before what is not, then a CPU, then the first by name.
    """
    best = max(unit.decode or 0.0 for unit in units)
    alike = [unit for unit in units if (unit.decode or 0.0) * _ALIKE >= best]
    return min(
        alike, key=lambda u: (-(u.prefill or 0.0), -(u.decode or 0.0), not u.is_cpu, u.unit_id)
    )


def _idle(unit: _Unit, best: _Unit) -> ChosenUnit:
    """A unit of a device that ``best`` computes on."""
    reason = _unmeasured(unit) if unit.decode is None else _slower(unit, best)
    return unit.chosen(Role.IDLE, reason)


def _beside(unit: _Unit, best: _Unit) -> ChosenUnit:
    """A unit of another device, which draws on the same memory as ``best``."""
    reason = f"{_slower(unit, best)}, which draws on the same memory"
    on_cores = unit.device.is_software or best.device.is_software
    return unit.chosen(
        Role.IDLE if on_cores else Role.RESERVE,
        _unmeasured(unit) if unit.decode is None else reason,
    )


def _slower(unit: _Unit, best: _Unit) -> str:
    """``12.3 tokens/s decode, cpu/native reaches 40``; with prefill where that has decided."""
    text = f"{_number(unit.decode)} tokens/s decode"
    other = _number(best.decode)
    if _is_alike(unit, best):
        text += f" and {_number(unit.prefill)} prefill"
        other += f" and {_number(best.prefill)}"
    return f"{text}, {best.unit_id} reaches {other}"


def _against(unit: _Unit, best: _Unit) -> str:
    text = f"{_number(unit.decode)} against {_number(best.decode)} tokens/s"
    if _is_alike(unit, best):
        text += f", {_number(unit.prefill)} against {_number(best.prefill)} in prefill"
    return text


def _is_alike(unit: _Unit, best: _Unit) -> bool:
    return (unit.decode or 0.0) * _ALIKE >= (best.decode or 0.0)


def _unmeasured(unit: _Unit) -> str:
    """That nothing is known yet, or why nothing could be found out."""
    source = unit.trial.rates.decode_tokens_per_second.source
    return "not measured yet" if source == Figure().source else source


def _number(rate: float | None) -> str:
    """Three digits, and no exponent: ``0.05``, ``3.1``, ``40``, ``1250``."""
    if rate is None:
        return "unknown"
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
