"""The whole probe of a node: every layer, every backend, with a deadline, whatever the machine.

The CPU comes first and waits for nothing. Every other layer has a thread of its own, since even a
file of ``/sys`` can block for ever behind a wedged driver; what is not there at the deadline is
reported as such, and its thread, which holds nothing, is left behind.
"""

from __future__ import annotations

import enum
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from potluck.probe.cache import ProbeCache
from potluck.probe.child_output import one_line
from potluck.probe.container import container
from potluck.probe.layer import Layer
from potluck.probe.layers.cpu import LAYER as CPU_LAYER
from potluck.probe.layers.cpu import cpu_facts
from potluck.probe.memory import memory_facts
from potluck.probe.system import System
from potluck.probe.trials import (
    cached_measurement,
    failed_trial,
    is_tried_on,
    measure_backend,
    try_backend,
)
from potluck.probe.vendor import ask_vendor
from potluck.types.hardware import BackendSpec, Device, LayerReport, ProbeReport, Trial

_log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
"""For everything that is slow: a cold driver may take this long to answer."""

_CHILD_SHARE = 0.8
"""Of the time that is left for a child: so its end, and why, is still known at the deadline."""

_LEAST_CHILD_SECONDS = 0.05
"""When the deadline is over; a limit of time must be above 0."""

_LATE = "did not answer before the deadline"


class Measuring(enum.Enum):
    """Which units' rates are measured; those measured before are in the cache."""

    NEVER = "never"
    IF_UNKNOWN = "if unknown"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """How to probe.

    ``retry`` tries again what crashed before. ``num_threads`` are those of the CPU's unit.
    ``allow_software`` and ``asked_backend``: see ``trials.is_tried_on``.
    """

    backends: Sequence[BackendSpec]
    num_threads: int
    measuring: Measuring = Measuring.NEVER
    retry: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    allow_software: bool = False
    asked_backend: str | None = None


OnReport = Callable[[ProbeReport], None]
OnProgress = Callable[[str, float], None]
"""Called with a unit's id and the share of its measurement that is done."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is known of one layer so far."""

    report: LayerReport
    trials: tuple[Trial, ...] = ()
    is_all: bool = False


def probe_node(
    system: System,
    options: ProbeOptions,
    cache: ProbeCache,
    *,
    layers: Sequence[Layer],
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
) -> ProbeReport:
    """What this node has and what of it works; never raises because of the machine.

    ``on_report`` is called in this thread, first when a backend was tried on the CPU, then whenever
    a layer is done; later reports have all that earlier ones had. The result has ``is_complete``:
    what was slower than the deadline is in it as far as it was known then. Measuring comes last,
    one unit after the other, and is not counted in the deadline.
    """
    probe = _Probe(options, cache, time.monotonic() + options.deadline_seconds)
    tell = on_report or _ignore
    news: queue.SimpleQueue[tuple[str, _Found]] = queue.SimpleQueue()

    def examine(layer: Layer) -> None:
        for found in probe.examine(layer, system):
            news.put((layer.name, found))

    for layer in layers:
        name = f"probe-{layer.name}"
        thread = threading.Thread(target=examine, args=(layer,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # this user or control group may have no more of them
            unseen = LayerReport(layer=layer.name, problems=(f"was not looked at: {error}",))
            news.put((layer.name, _Found(report=unseen, is_all=True)))
    nothing = ProbeReport(
        host_name=socket.gethostname(),
        kernel=probe.kernel_release,
        container=container(system),
        cpu=cpu_facts(system, num_affine_cores=len(os.sched_getaffinity(0))),
        memory=memory_facts(system),
        layers=(),
        trials=(),
        is_complete=False,
    )
    for cpu in probe.examine(CPU_LAYER, system):
        if cpu.trials or cpu.is_all:
            tell(_with(nothing, [cpu]))
    found = {layer.name: _Found(report=LayerReport(layer=layer.name)) for layer in layers}
    while not all(one.is_all for one in found.values()):
        try:
            name, one = news.get(timeout=max(0.0, probe.end - time.monotonic()))
        except queue.Empty:
            break
        found[name] = one
        if one.is_all and one.report.devices:
            tell(_with(nothing, [cpu, *(each for each in found.values() if each.is_all)]))
    report = _with(nothing, [cpu, *map(probe.at_the_deadline, found.values())])
    report = replace(report, is_complete=True)
    tell(report)
    if options.measuring is Measuring.NEVER:
        return report
    report = replace(report, trials=probe.measured(report, on_progress))
    tell(report)
    return report


class _Probe:
    """What all layers of one probe have in common."""

    def __init__(self, options: ProbeOptions, cache: ProbeCache, end: float) -> None:
        self._options = options
        self._cache = cache
        self.end = end
        self.kernel_release = os.uname().release

    def examine(self, layer: Layer, system: System) -> Iterator[_Found]:
        """What the files tell, then what the vendor's library does, then trial by trial."""
        report = self._find(layer, system)
        yield _Found(report=report)
        report = self._ask(layer, report)
        yield _Found(report=report)
        trials: tuple[Trial, ...] = ()
        for spec, device in self._pairs(report):
            trials += (self._try(spec, device),)
            yield _Found(report=report, trials=trials)
        yield _Found(report=report, trials=trials, is_all=True)

    def at_the_deadline(self, found: _Found) -> _Found:
        """What is reported of a layer that may be late."""
        if found.is_all:
            return found
        tried = {trial.unit_id for trial in found.trials}
        untried = [
            trial
            for spec, device in self._pairs(found.report)
            if (trial := failed_trial(spec, device, _LATE)).unit_id not in tried
        ]
        report = replace(found.report, problems=(*found.report.problems, _LATE))
        return _Found(report=report, trials=(*found.trials, *untried))

    def _find(self, layer: Layer, system: System) -> LayerReport:
        return _guarded(
            lambda: _sound(layer.find(system)),
            lambda reason: LayerReport(layer=layer.name, problems=(reason,)),
        )

    def _ask(self, layer: Layer, report: LayerReport) -> LayerReport:
        query = layer.query
        if query is None:
            return report

        def ask() -> LayerReport:
            return _sound(
                ask_vendor(
                    query,
                    report,
                    kernel_release=self.kernel_release,
                    cache=self._cache,
                    retry=self._options.retry,
                    deadline_seconds=self._child_seconds(),
                )
            )

        return _guarded(ask, lambda reason: replace(report, problems=(*report.problems, reason)))

    def _pairs(self, report: LayerReport) -> Iterator[tuple[BackendSpec, Device]]:
        for device in report.devices:
            for spec in self._options.backends:
                if is_tried_on(
                    spec,
                    device,
                    allow_software=self._options.allow_software,
                    asked_backend=self._options.asked_backend,
                ):
                    yield spec, device

    def _try(self, spec: BackendSpec, device: Device) -> Trial:
        def try_out() -> Trial:
            trial = try_backend(
                spec,
                device,
                kernel_release=self.kernel_release,
                cache=self._cache,
                retry=self._options.retry,
                deadline_seconds=self._child_seconds(),
            )
            known = cached_measurement(
                spec,
                device,
                trial,
                kernel_release=self.kernel_release,
                num_threads=self._options.num_threads,
                cache=self._cache,
            )
            return known or trial

        return _guarded(try_out, lambda reason: failed_trial(spec, device, reason))

    def measured(self, report: ProbeReport, on_progress: OnProgress | None) -> tuple[Trial, ...]:
        """The trials of ``report`` with the rates of what works."""
        specs = {spec.name: spec for spec in self._options.backends}
        devices = {device.device_id: device for device in report.devices}
        return tuple(
            measure_backend(
                specs[trial.backend],
                devices[trial.device_id],
                trial,
                kernel_release=self.kernel_release,
                num_threads=self._options.num_threads,
                cache=self._cache,
                retry=self._options.measuring is Measuring.ALWAYS,
                on_progress=None if on_progress is None else partial(on_progress, trial.unit_id),
            )
            for trial in report.trials
        )

    def _child_seconds(self) -> float:
        return max(_LEAST_CHILD_SECONDS, _CHILD_SHARE * (self.end - time.monotonic()))


def _guarded(call: Callable[[], _T], otherwise: Callable[[str], _T]) -> _T:
    """What ``call`` gives, or ``otherwise`` with the reason why it failed: the node goes on."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - any layer, on any machine
        _log.debug("a part of the probe failed", exc_info=True)
        return otherwise(one_line(f"failed with {type(error).__name__}: {error}"))


def _sound(report: LayerReport) -> LayerReport:
    """``report`` if it is one: what is not would fail later, where nobody knows whose it was."""
    if not isinstance(report, LayerReport):
        raise TypeError(f"{type(report).__name__} is no report")
    for device in report.devices:
        if not isinstance(device, Device):
            raise TypeError(f"{type(device).__name__} is no device")
    return report


def _with(nothing: ProbeReport, found: Sequence[_Found]) -> ProbeReport:
    """A report of what was found, in this order."""
    return replace(
        nothing,
        layers=tuple(one.report for one in found),
        trials=tuple(trial for one in found for trial in one.trials),
    )


def _ignore(report: ProbeReport) -> None:
    pass
