"""The units of a node: which of them may compute, and how a worker reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.engines.backends import abilities_of, unit_address
from potluck.errors import EngineError
from potluck.probe.choose import choose_units
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.cluster import UnitId
from potluck.types.hardware import BackendSpec, Device, DeviceKind, ProbeReport, Trial
from potluck.types.unit import ChosenUnit, Role, UnitAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitChoice:
    """What the user of a node says of its units.

    ``asked`` is a backend or a unit that alone shall serve. ``isa`` is the native backend's
    instruction set, or None for the fastest that passed its test.
    """

    backends: Sequence[BackendSpec]
    asked: str | None = None
    allow_software: bool = False
    isa: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnit:
    """A unit with its device and the trial that it has passed, or not.

    ``arithmetics`` are what it computes in as it is asked: by the instruction sets that passed, or
    the one that the user has chosen. None of a backend that has an arithmetic of its own.
    """

    chosen: ChosenUnit
    device: Device
    trial: Trial
    arithmetics: tuple[Arithmetic, ...] = ()


def usable_cores_of(
    unit: NodeUnit, num_threads: int, core_seconds_per_second: float
) -> float | None:
    """Return how many cores' time a unit's threads get at most, if that is less than they are.

    None otherwise, and for a unit that does not compute on the CPU.
    """
    on_cpu = unit.device.kind is DeviceKind.CPU or unit.device.is_software
    return core_seconds_per_second if on_cpu and core_seconds_per_second < num_threads else None


def conditions_of(
    unit: NodeUnit, isa: str | None, num_threads: int, usable_cores: float | None
) -> str:
    """Return a text that changes when a unit may have become faster or slower for good."""
    variant = isa or (unit.trial.variants[-1] if unit.trial.variants else "")
    cores = "" if usable_cores is None else f"{usable_cores:.2g} cores"
    threads = f"{num_threads} threads"
    return ", ".join(part for part in (unit.device.name, variant, threads, cores) if part)


def _nothing_is_out() -> Mapping[str, str]:
    return {}


class NodeUnits:
    """The units as they are at any moment, by the latest report.

    ``out`` names those that failed while they were used, with the reasons.
    """

    def __init__(
        self,
        report: Callable[[], ProbeReport],
        choice: UnitChoice,
        out: Callable[[], Mapping[str, str]] = _nothing_is_out,
    ) -> None:
        self._report = report
        self._choice = choice
        self._out = out

    def all(self) -> tuple[NodeUnit, ...]:
        """Those that work or did or may, and the CPU whatever it is like: it says why there are
        none.
        """
        report = self._report()
        devices = {device.device_id: device for device in report.devices}
        trials = {trial.unit_id: trial for trial in report.trials}
        choice = self._choice
        chosen = choose_units(
            report, asked=choice.asked, allow_software=choice.allow_software, out=self._out()
        )
        units = [
            NodeUnit(
                chosen=each,
                device=devices[each.device_id],
                trial=trials[each.unit_id],
                arithmetics=self._arithmetics(trials[each.unit_id]),
            )
            for each in chosen
        ]
        return tuple(
            unit
            for unit in units
            if unit.trial.works
            or unit.trial.is_pending
            or abilities_of(unit.trial.backend, choice.backends).is_built_in
        )

    def require(self, unit_id: str) -> NodeUnit:
        """A unit that a stage may be started on; raises ``EngineError`` if it is none."""
        unit = next((each for each in self.all() if each.chosen.unit_id == unit_id), None)
        if unit is None:
            raise EngineError(f"this node has no unit {unit_id}", hint="potluck ps shows what is")
        if unit.chosen.role is Role.PENDING:
            raise EngineError(f"the unit {unit_id} is not tested yet: {unit.chosen.reason}")
        if unit.chosen.role is Role.OUT:
            raise EngineError(f"the unit {unit_id} is out: {unit.chosen.reason}")
        return unit

    def address(self, unit: NodeUnit, arithmetic: Arithmetic = Arithmetic.EXACT) -> UnitAddress:
        """How a worker reaches a unit to compute in ``arithmetic``.

        Raises ``EngineError`` if no stage can run on it, or none in this arithmetic.
        """
        address = unit_address(unit.trial, self._choice.backends)
        if not abilities_of(address.backend, self._choice.backends).has_arithmetics:
            return address
        if arithmetic not in unit.arithmetics:
            raise EngineError(
                f"the unit {unit.chosen.unit_id} does not compute in {arithmetic.value}",
                hint=f"it computes in {', '.join(each.value for each in unit.arithmetics)}",
            )
        variant = arithmetic.isa or self._choice.isa
        return address if variant is None else replace(address, variant=variant)

    def conditions(self, num_threads: int, core_seconds_per_second: float) -> dict[UnitId, str]:
        """Return what each unit's speed depends on, beyond the model; see ``conditions_of``."""
        return {
            UnitId(unit.chosen.unit_id): conditions_of(
                unit,
                self._choice.isa,
                num_threads,
                usable_cores_of(unit, num_threads, core_seconds_per_second),
            )
            for unit in self.all()
        }

    def _arithmetics(self, trial: Trial) -> tuple[Arithmetic, ...]:
        if not abilities_of(trial.backend, self._choice.backends).has_arithmetics:
            return ()
        isa = self._choice.isa
        return arithmetics_with(trial.variants if isa is None else (isa,))
