"""The whole probe of a node: every layer, every backend, with a deadline, whatever the machine.

The CPU comes first and waits for nothing. Every other layer has a thread of its own, since even a
file of ``/sys`` can block for ever behind a wedged driver; what is not there at the deadline is
reported as such, and its thread, which holds nothing, is left behind.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from potluck.probe.cache import ProbeCache
from potluck.probe.container import container
from potluck.probe.layer import Layer
from potluck.probe.layers import LAYERS
from potluck.probe.layers.cpu import LAYER as CPU_LAYER
from potluck.probe.layers.cpu import cpu_facts
from potluck.probe.memory import memory_facts
from potluck.probe.system import System
from potluck.probe.trials import try_backend
from potluck.probe.vendor import ask_vendor
from potluck.types.hardware import BackendSpec, Device, LayerReport, ProbeReport, Trial

_log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
"""For everything that is slow: a cold driver may take this long to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """How to probe.

    ``measure`` runs the micro-benchmarks of units that have no cached figures; ``remeasure`` of all
    units. ``retry`` tries again what crashed before. ``num_threads`` are for measuring the CPU.
    """

    backends: Sequence[BackendSpec]
    num_threads: int
    measure: bool = False
    remeasure: bool = False
    retry: bool = False
    deadline_seconds: float = DEADLINE_SECONDS


OnReport = Callable[[ProbeReport], None]
OnProgress = Callable[[str, float], None]
"""Called with a unit's id and the share of its measurement that is done."""


def probe_node(
    system: System,
    options: ProbeOptions,
    cache: ProbeCache,
    *,
    layers: Sequence[Layer] = LAYERS,
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
) -> ProbeReport:
    """What this node has and what of it works; never raises because of the machine.

    ``on_report`` is called in this thread, first with the CPU alone, then whenever more is known.
    The result has ``is_complete``. Measuring comes last, one unit after the other.
    """
    end = time.monotonic() + options.deadline_seconds
    kernel_release = os.uname().release
    tell = on_report or _ignore
    news: queue.SimpleQueue[tuple[str, LayerReport, tuple[Trial, ...]]] = queue.SimpleQueue()

    def run(layer: Layer) -> None:
        found = _find(layer, system)
        if layer.query is not None and layer.query.is_wanted(found):
            remaining = max(0.0, end - time.monotonic())
            found = ask_vendor(
                layer.query,
                found,
                kernel_release=kernel_release,
                cache=cache,
                retry=options.retry,
                deadline_seconds=remaining,
            )
        news.put((layer.name, found, _try_all(found.devices, options, cache, end)))

    for layer in layers:
        threading.Thread(target=run, args=(layer,), name=f"probe-{layer.name}", daemon=True).start()
    cpu_layer = _find(CPU_LAYER, system)
    report = ProbeReport(
        host_name=socket.gethostname(),
        kernel=kernel_release,
        container=container(system),
        cpu=cpu_facts(system, num_affine_cores=len(os.sched_getaffinity(0))),
        memory=memory_facts(system),
        layers=(cpu_layer,),
        trials=_try_all(cpu_layer.devices, options, cache, end),
        is_complete=not layers,
    )
    tell(report)
    report = _gather(report, news, [layer.name for layer in layers], end, tell)
    if options.measure:
        report = _measure_all(report, options, cache, on_progress)
        tell(report)
    return report


def _gather(
    report: ProbeReport,
    news: queue.SimpleQueue[tuple[str, LayerReport, tuple[Trial, ...]]],
    names: Sequence[str],
    end: float,
    tell: OnReport,
) -> ProbeReport:
    """``report`` with the layers' results in the order of ``names``, whichever come first."""
    found: dict[str, tuple[LayerReport, tuple[Trial, ...]]] = {}
    while len(found) < len(names):
        try:
            name, layer, trials = news.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        found[name] = layer, trials
        if len(found) < len(names) and layer.devices:
            tell(_with(report, found, names, is_complete=False))
    for name in names:
        late = LayerReport(layer=name, problems=("did not answer before the deadline",))
        found.setdefault(name, (late, ()))
    report = _with(report, found, names, is_complete=True)
    tell(report)
    return report


def _with(
    report: ProbeReport,
    found: dict[str, tuple[LayerReport, tuple[Trial, ...]]],
    names: Sequence[str],
    *,
    is_complete: bool,
) -> ProbeReport:
    there = [found[name] for name in names if name in found]
    return replace(
        report,
        layers=(*report.layers, *(layer for layer, _ in there)),
        trials=(*report.trials, *(trial for _, trials in there for trial in trials)),
        is_complete=is_complete,
    )


def _find(layer: Layer, system: System) -> LayerReport:
    """What the files tell. A layer that fails is one line, and the node goes on without it."""
    try:
        return layer.find(system)
    except Exception as error:
        _log.exception("the layer %s failed", layer.name)
        reason = f"failed with {type(error).__name__}: {error}"
        return LayerReport(layer=layer.name, problems=(reason.splitlines()[0],))


def _try_all(
    devices: Sequence[Device], options: ProbeOptions, cache: ProbeCache, end: float
) -> tuple[Trial, ...]:
    return tuple(
        try_backend(
            spec,
            device,
            kernel_release=os.uname().release,
            cache=cache,
            retry=options.retry,
            deadline_seconds=max(1.0, end - time.monotonic()),
        )
        for device in devices
        for spec in options.backends
        if _suits(spec, device)
    )


def _suits(spec: BackendSpec, device: Device) -> bool:
    return device.kind in spec.kinds and (not spec.makes or device.make in spec.makes)


def _ignore(report: ProbeReport) -> None:
    pass
