"""The first half of the probe: what files tell of a make of device, and what its library adds."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildFailure, ChildOutcome, Failure
from potluck.probe.guard import guarded, run_at_once
from potluck.probe.layer import Layer, VendorQuery
from potluck.probe.system import System
from potluck.probe.vendor import ask_vendor
from potluck.types.hardware import Device, LayerReport

_CHILD_SHARE = 0.8
"""Of the time that is left for a child: so its end, and why, is still known at the deadline."""

_LEAST_CHILD_SECONDS = 0.05
"""When the deadline is over; a limit of time must be above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looker:
    """Looks for devices on ``system`` until ``end`` (``time.monotonic``). Nothing raises."""

    system: System
    kernel_release: str
    cache: ProbeCache
    retry: bool
    end: float

    def find(self, layer: Layer) -> LayerReport:
        """What the files tell."""
        return guarded(
            lambda: _sound(layer.find(self.system)),
            lambda reason: LayerReport(layer=layer.name, problems=(reason,)),
        )

    def ask(self, layer: Layer, report: LayerReport) -> LayerReport:
        """``report``, which is what the files told, with what the libraries tell."""
        return guarded(lambda: self._asked(layer, report), partial(with_problem, report))

    def _asked(self, layer: Layer, report: LayerReport) -> LayerReport:
        queries = layer.queries(self.system, report)
        outcomes = run_at_once([partial(self._ask, query, report) for query in queries])
        for query, outcome in zip(queries, outcomes, strict=True):
            report = guarded(
                partial(_merged, query, report, outcome), partial(with_problem, report)
            )
        return report

    def _ask(self, query: VendorQuery, report: LayerReport) -> ChildOutcome:
        return guarded(
            lambda: ask_vendor(
                query,
                report,
                kernel_release=self.kernel_release,
                cache=self.cache,
                retry=self.retry,
                deadline_seconds=max(
                    _LEAST_CHILD_SECONDS, _CHILD_SHARE * (self.end - time.monotonic())
                ),
            ),
            lambda reason: ChildFailure(failure=Failure.NOT_STARTED, reason=reason, seconds=0.0),
        )


def _merged(query: VendorQuery, report: LayerReport, outcome: ChildOutcome) -> LayerReport:
    return _sound(query.merge(report, outcome))


def with_problem(report: LayerReport, reason: str) -> LayerReport:
    """``report`` with a line more."""
    return replace(report, problems=(*report.problems, reason))


def _sound(report: LayerReport) -> LayerReport:
    """``report`` if it is one: what is not would fail later, where nobody knows whose it was."""
    if not isinstance(report, LayerReport):
        raise TypeError(f"{type(report).__name__} is no report")
    for device in report.devices:
        if not isinstance(device, Device):
            raise TypeError(f"{type(device).__name__} is no device")
    return report
