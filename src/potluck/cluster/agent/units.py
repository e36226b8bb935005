"""The units of a node: which of them may compute, and how workers open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.cluster.agent.threads import NodeThreads
from potluck.engines.backends import abilities_of, unit_address
from potluck.errors import EngineError
from potluck.probe.choose import choose_units
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.cluster import UnitId
from potluck.types.hardware import Device, ProbeReport, Trial
from potluck.types.unit import ChosenUnit, Role, UnitAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnit:
    """A unit with its device and the result of its trial.

    ``arithmetics`` are the arithmetics that it offers: by the instruction sets that passed, or the
    one that the user has chosen. Empty for a backend that has its own arithmetic.
    """

    chosen: ChosenUnit
    device: Device
    trial: Trial
    arithmetics: tuple[Arithmetic, ...] = ()

    @property
    def is_on_cpu(self) -> bool:
        """Whether it computes on the cores of the host."""
        return self.device.kind is DeviceKind.CPU or self.device.is_software


def conditions_of(unit: NodeUnit, isa: str | None, node: NodeThreads) -> str:
    """Return a text that changes when the speed of a unit may have changed permanently."""
    variant = isa or (unit.trial.variants[-1] if unit.trial.variants else "")
    limited = node.core_time if unit.is_on_cpu else None
    cores = "" if limited is None else f"{limited:.2g} cores"
    threads = f"{node.num_computing} threads"
    return ", ".join(part for part in (unit.device.name, variant, threads, cores) if part)


class NodeUnits:
    """The node's current units, by the latest report.

    ``requested`` is a backend or unit to use exclusively. ``isa`` is the native backend's
    instruction set, or None for the fastest that passed its test. ``out`` returns the units that
    failed in use, with the reasons.
    """

    def __init__(
        self,
        report: Callable[[], ProbeReport],
        *,
        backends: Sequence[BackendSpec],
        requested: str | None = None,
        allow_software: bool = False,
        isa: str | None = None,
        out: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._report = report
        self._backends = backends
        self._requested = requested
        self._allow_software = allow_software
        self._isa = isa
        self._out = out

    def all(self) -> tuple[NodeUnit, ...]:
        """Return the units that work, worked or may work, and always the CPU, which says why there
        are none.
        """
        report = self._report()
        devices = {device.device_id: device for device in report.devices}
        trials = {trial.unit_id: trial for trial in report.trials}
        chosen = choose_units(
            report,
            requested=self._requested,
            allow_software=self._allow_software,
            out=self._out(),
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
            or abilities_of(unit.trial.backend, self._backends).is_built_in
        )

    def require(self, unit_id: str) -> NodeUnit:
        """Return a unit that a stage may be started on. Raises ``EngineError`` if it is none."""
        unit = next((each for each in self.all() if each.chosen.unit_id == unit_id), None)
        if unit is None:
            raise EngineError(
                f"this node has no unit {unit_id}", hint="list its units with: potluck ps"
            )
        if unit.chosen.role is Role.PENDING:
            raise EngineError(f"the unit {unit_id} has not been tested yet: {unit.chosen.reason}")
        if unit.chosen.role is Role.OUT:
            raise EngineError(f"the unit {unit_id} is out: {unit.chosen.reason}")
        return unit

    def address(self, unit: NodeUnit, arithmetic: Arithmetic = Arithmetic.EXACT) -> UnitAddress:
        """Return how a worker opens a unit to compute in ``arithmetic``.

        Raises ``EngineError`` if no stage can run on it, or none in this arithmetic.
        """
        address = unit_address(unit.trial, self._backends)
        if not abilities_of(address.backend, self._backends).has_arithmetics:
            return address
        if arithmetic not in unit.arithmetics:
            raise EngineError(
                f"the unit {unit.chosen.unit_id} does not compute in {arithmetic.value}",
                hint=f"it computes in {', '.join(each.value for each in unit.arithmetics)}",
            )
        variant = arithmetic.isa or self._isa
        return address if variant is None else replace(address, variant=variant)

    def conditions(self, threads: NodeThreads) -> dict[UnitId, str]:
        """Return what each unit's speed depends on, apart from the model; see ``conditions_of``."""
        return {
            UnitId(unit.chosen.unit_id): conditions_of(unit, self._isa, threads)
            for unit in self.all()
        }

    def _arithmetics(self, trial: Trial) -> tuple[Arithmetic, ...]:
        if not abilities_of(trial.backend, self._backends).has_arithmetics:
            return ()
        return arithmetics_with(trial.variants if self._isa is None else (self._isa,))
