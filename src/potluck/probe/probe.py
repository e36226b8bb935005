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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potluck.probe.cache import ProbeCache
from potluck.probe.container import container
from potluck.probe.layer import Layer
from potluck.probe.layers.cpu import LAYER as CPU_LAYER
from potluck.probe.layers.cpu import cpu_facts
from potluck.probe.memory import memory_facts
from potluck.probe.system import System
from potluck.probe.trials import (
    cached_measurement,
    is_tried_on,
    measure_backend,
    try_backend,
)
from potluck.probe.vendor import ask_vendor
from potluck.types.hardware import BackendSpec, Device, LayerReport, ProbeReport, Trial

_log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
"""For everything that is slow: a cold driver may take this long to answer."""

_LEAST_CHILD_SECONDS = 1.0
"""What a self-test gets even where the deadline is over: else nothing would be known."""


class Measuring(enum.Enum):
    """Which units' rates are measured; those measured before are in the cache."""

    NEVER = "never"
    IF_UNKNOWN = "if unknown"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """How to probe.

    ``retry`` tries again what crashed before. ``num_threads`` are those of the CPU's unit.
    """

    backends: Sequence[BackendSpec]
    num_threads: int
    measuring: Measuring = Measuring.NEVER
    retry: bool = False
    deadline_seconds: float = DEADLINE_SECONDS


OnReport = Callable[[ProbeReport], None]
OnProgress = Callable[[str, float], None]
"""Called with a unit's id and the share of its measurement that is done."""

_Found = tuple[LayerReport, tuple[Trial, ...]]


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

    ``on_report`` is called in this thread, first with the CPU alone, then whenever more is known.
    The result has ``is_complete``. Measuring comes last, one unit after the other, and is not
    counted in the deadline.
    """
    probe = _Probe(options, cache, time.monotonic() + options.deadline_seconds)
    tell = on_report or _ignore
    news: queue.SimpleQueue[tuple[str, _Found]] = queue.SimpleQueue()
    for layer in layers:
        threading.Thread(
            target=lambda layer: news.put((layer.name, probe.layer(layer, system))),
            args=(layer,),
            name=f"probe-{layer.name}",
            daemon=True,
        ).start()
    cpu_layer, cpu_trials = probe.layer(CPU_LAYER, system)
    first = ProbeReport(
        host_name=socket.gethostname(),
        kernel=probe.kernel_release,
        container=container(system),
        cpu=cpu_facts(system, num_affine_cores=len(os.sched_getaffinity(0))),
        memory=memory_facts(system),
        layers=(cpu_layer,),
        trials=cpu_trials,
        is_complete=not layers,
    )
    tell(first)
    found: dict[str, _Found] = {}
    while len(found) < len(layers):
        try:
            name, one = news.get(timeout=max(0.0, probe.end - time.monotonic()))
        except queue.Empty:
            break
        found[name] = one
        if one[0].devices and len(found) < len(layers):
            tell(_with(first, layers, found, is_complete=False))
    for layer in layers:
        late = LayerReport(layer=layer.name, problems=("did not answer before the deadline",))
        found.setdefault(layer.name, (late, ()))
    report = _with(first, layers, found, is_complete=True)
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

    def layer(self, layer: Layer, system: System) -> _Found:
        """One layer's devices, and how the backends did on them."""
        found = self._find(layer, system)
        return found, tuple(self._tried(found.devices))

    def _find(self, layer: Layer, system: System) -> LayerReport:
        try:
            found = layer.find(system)
            if layer.query is None:
                return found
            return ask_vendor(
                layer.query,
                found,
                kernel_release=self.kernel_release,
                cache=self._cache,
                retry=self._options.retry,
                deadline_seconds=self._remaining_seconds(),
            )
        except Exception as error:  # noqa: BLE001 - the node goes on without what fails
            _log.debug("the layer %s failed", layer.name, exc_info=True)
            reason = f"failed with {type(error).__name__}: {error}".splitlines()[0]
            return LayerReport(layer=layer.name, problems=(reason,))

    def _tried(self, devices: Iterable[Device]) -> Iterator[Trial]:
        for device in devices:
            for spec in self._options.backends:
                if is_tried_on(spec, device):
                    trial = try_backend(
                        spec,
                        device,
                        kernel_release=self.kernel_release,
                        cache=self._cache,
                        retry=self._options.retry,
                        deadline_seconds=self._remaining_seconds(),
                    )
                    known = cached_measurement(
                        spec,
                        device,
                        trial,
                        kernel_release=self.kernel_release,
                        num_threads=self._options.num_threads,
                        cache=self._cache,
                    )
                    yield known or trial

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

    def _remaining_seconds(self) -> float:
        return max(_LEAST_CHILD_SECONDS, self.end - time.monotonic())


def _with(
    first: ProbeReport,
    layers: Sequence[Layer],
    found: Mapping[str, _Found],
    *,
    is_complete: bool,
) -> ProbeReport:
    """``first`` and what was found, in the order of ``layers``, whichever came first."""
    there = [found[layer.name] for layer in layers if layer.name in found]
    return replace(
        first,
        layers=(*first.layers, *(report for report, _ in there)),
        trials=(*first.trials, *(trial for _, trials in there for trial in trials)),
        is_complete=is_complete,
    )


def _ignore(report: ProbeReport) -> None:
    pass
