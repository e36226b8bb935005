"""The whole probe of a node: every layer, every backend, with a deadline, whatever the machine.

In two halves. First all layers look for devices, and what OpenCL shows is put to the devices that
it belongs to; then backends are tried on each device. The CPU waits for neither: it is tried at
once. Every layer, and every device's trials, have a thread of their own, since even a file of
``/sys`` can block for ever behind a wedged driver; what is not there at the deadline is reported as
pending, and its thread, which holds nothing, is left behind.
"""

from __future__ import annotations

import enum
import math
import os
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potluck.probe.cache import ProbeCache
from potluck.probe.container import container
from potluck.probe.cores import affine_cores
from potluck.probe.guard import guarded, start_thread
from potluck.probe.layer import Layer
from potluck.probe.layers.cpu import LAYER as CPU_LAYER
from potluck.probe.layers.cpu import cpu_facts
from potluck.probe.looking import Looker, with_problem
from potluck.probe.measuring import cached_measurement, measure_backend
from potluck.probe.memory import memory_facts
from potluck.probe.opencl_match import match_opencl
from potluck.probe.system import System
from potluck.probe.trials import failed_trial, is_tried_on, pending_trial, try_backend
from potluck.types.hardware import BackendSpec, Device, LayerReport, ProbeReport, Trial
from potluck.uname import host_name

DEADLINE_SECONDS = 20.0
"""For finding devices: a cold driver may take this long to answer."""

TRIAL_SECONDS = 60.0
"""For trying one backend on one device: a cold GPU compiles its kernels first."""

_END_SECONDS = 4.0
"""What a child may take to be gone after its deadline (``probe.child``), and some."""

_MOST_BUSY = 10
"""How many times as long a child takes at most, where others want its CPU (``probe.child``)."""

_FIND_SHARE = 0.6
"""Of the time of a command that does not wait, for finding devices: one driver that hangs leaves
the others enough for their tests, of which most are in the cache."""

_LEAST_WAIT_SECONDS = 0.5
"""For a command that has little of its time left, as the machine is busy: files and the cache are
read by then."""


class Measuring(enum.Enum):
    """Which units' rates are measured; those measured before are in the cache."""

    NEVER = "never"
    IF_UNKNOWN = "if unknown"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """How to probe.

    ``retry`` tries again what crashed before. ``num_threads`` are those of the CPU's unit.
    ``deadline_seconds`` are for finding devices, ``trial_seconds`` for each backend on each, waits
    for a CPU not counted. ``wait_seconds`` are for all of it, None without a bound.
    What only plays a GPU is listed always, and tried with ``allow_software`` or by the backend
    whose name is ``asked_backend``.
    """

    backends: Sequence[BackendSpec]
    num_threads: int
    measuring: Measuring = Measuring.NEVER
    retry: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    trial_seconds: float = TRIAL_SECONDS
    wait_seconds: float | None = None
    allow_software: bool = False
    asked_backend: str | None = None


OnReport = Callable[[ProbeReport], None]
OnProgress = Callable[[str, float], None]
"""Called with a unit's id and the share of its measurement that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """What a layer has found so far, or in the end."""

    name: str
    report: LayerReport
    is_done: bool


_News = queue.SimpleQueue[_Looked | Trial]


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
    a layer is done or a backend was tried; later reports have all that earlier ones had. The result
    has ``is_complete``: what was slower than its deadline is in it as far as it was known then, as
    pending. A layer or a backend that is cut short by ``wait_seconds`` is not held against it: its
    child ends with this process, and the next probe tries again.
    Measuring comes last, one unit after the other, and has no deadline of the whole.
    """
    tell = on_report or _ignore
    probe = _Probe(system, options, cache, layers)
    while not probe.is_done:
        if probe.wait():
            tell(probe.report())
    report = replace(probe.report(), is_complete=True)
    tell(report)
    if options.measuring is Measuring.NEVER:
        return report
    report = replace(report, trials=probe.measured(report, on_progress))
    tell(report)
    return report


def files_report(system: System) -> ProbeReport:
    """What files tell at once: the node, its memory and its CPU; nothing was asked or tried."""
    return replace(_nothing(system), layers=(CPU_LAYER.find(system),))


def _nothing(system: System) -> ProbeReport:
    """A report without devices."""
    return ProbeReport(
        host_name=host_name(),
        kernel=os.uname().release,
        container=container(system),
        cpu=cpu_facts(system, num_affine_cores=len(affine_cores())),
        memory=memory_facts(system),
        layers=(),
        trials=(),
        is_complete=False,
    )


def waiting_devices(report: ProbeReport, options: ProbeOptions) -> frozenset[str]:
    """The ids of devices in ``report`` on which a backend is still to be tried. Pure."""
    tried = {trial.unit_id for trial in report.trials}
    return frozenset(
        device.device_id
        for unit_id, _, device in _wanted_trials(options, report.layers)
        if unit_id not in tried
    )


def _wanted_trials(
    options: ProbeOptions, reports: Sequence[LayerReport]
) -> Iterator[tuple[str, BackendSpec, Device]]:
    """The trials that are to be made on the devices of ``reports``, with the units' ids."""
    for report in reports:
        for device in report.devices:
            for spec in options.backends:
                if is_tried_on(
                    spec,
                    device,
                    allow_software=options.allow_software,
                    asked_backend=options.asked_backend,
                ):
                    yield f"{device.device_id}/{spec.name}", spec, device


class _Probe:
    """A probe under way. Belongs to one thread; others only bring news."""

    def __init__(
        self, system: System, options: ProbeOptions, cache: ProbeCache, layers: Sequence[Layer]
    ) -> None:
        self._options = options
        self._cache = cache
        self._news: _News = queue.SimpleQueue()
        self._kernel_release = os.uname().release
        self._started = started = time.monotonic()
        wait_seconds = math.inf
        if options.wait_seconds is not None:
            wait_seconds = max(_LEAST_WAIT_SECONDS, options.wait_seconds)
        self._last = started + wait_seconds
        self._end = started + min(options.deadline_seconds, _FIND_SHARE * wait_seconds)
        looker = Looker(
            system=system,
            kernel_release=self._kernel_release,
            cache=cache,
            retry=options.retry,
            end=started + options.deadline_seconds,
        )
        self._layers = layers
        self._looked = {
            layer.name: _Looked(
                name=layer.name, report=LayerReport(layer=layer.name), is_done=False
            )
            for layer in layers
        }
        for layer in layers:
            problem = start_thread(f"probe-{layer.name}", partial(self._look, looker, layer))
            if problem:
                unseen = LayerReport(layer=layer.name, problems=(f"was not looked at: {problem}",))
                self._news.put(_Looked(name=layer.name, report=unseen, is_done=True))
        self._cpu = looker.find(CPU_LAYER)
        self._joined: tuple[LayerReport, ...] | None = None
        self._trials: dict[str, Trial] = {}
        self._trials_end = 0.0
        self._nothing = _nothing(system)
        self._start_trials([self._cpu])

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._joined is not None and self._is_all_tried()

    def wait(self) -> bool:
        """Wait for news, or the next deadline; whether there is something new to report.

        Nothing is before the CPU was tried.
        """
        end = min(self._last, self._end if self._joined is None else self._trials_end)
        is_new = True
        try:
            match self._news.get(timeout=max(0.0, end - time.monotonic())):
                case Trial() as trial:
                    self._trials.setdefault(trial.unit_id, trial)
                case looked:
                    self._looked[looked.name] = looked
                    is_new = looked.is_done and bool(looked.report.devices)
        except queue.Empty:
            self._give_up()
        if self._joined is None and all(looked.is_done for looked in self._looked.values()):
            self._join()
            is_new = True
        return is_new and self._is_cpu_tried()

    def report(self) -> ProbeReport:
        """All that is known so far."""
        layers = self._reports()
        order = [unit_id for unit_id, _, _ in self._wanted(layers)]
        return replace(
            self._nothing,
            layers=layers,
            trials=tuple(self._trials[unit] for unit in order if unit in self._trials),
        )

    def measured(self, report: ProbeReport, on_progress: OnProgress | None) -> tuple[Trial, ...]:
        """The trials of ``report`` with the rates of what works."""
        specs = {spec.name: spec for spec in self._options.backends}
        devices = {device.device_id: device for device in report.devices}
        return tuple(
            measure_backend(
                specs[trial.backend],
                devices[trial.device_id],
                trial,
                kernel_release=self._kernel_release,
                num_threads=self._options.num_threads,
                cache=self._cache,
                retry=self._options.measuring is Measuring.ALWAYS,
                on_progress=None if on_progress is None else partial(on_progress, trial.unit_id),
            )
            for trial in report.trials
        )

    def _look(self, looker: Looker, layer: Layer) -> None:
        """In a thread of its own: tell what the files say, and then what there is in all."""
        found = looker.find(layer)
        self._news.put(_Looked(name=layer.name, report=found, is_done=False))
        asked = looker.ask(layer, found)
        self._news.put(_Looked(name=layer.name, report=asked, is_done=True))

    def _give_up(self) -> None:
        """The deadline is over: what is not there is pending."""
        seconds = time.monotonic() - self._started
        if self._joined is None:
            reason = f"has not answered yet, after {seconds:.0f} s"
            for name, looked in self._looked.items():
                if not looked.is_done:
                    report = replace(with_problem(looked.report, reason), is_pending=True)
                    self._looked[name] = _Looked(name=name, report=report, is_done=True)
            return
        reason = f"its test had not ended after {seconds:.0f} s"
        for unit_id, spec, device in self._wanted(self._reports()):
            self._trials.setdefault(unit_id, pending_trial(spec, device, reason))

    def _join(self) -> None:
        """All layers are done: whose OpenCL's devices are, and then the trials of all of them."""
        reports = tuple(looked.report for looked in self._looked.values())
        self._joined = guarded(
            lambda: match_opencl(reports),
            lambda reason: tuple(with_problem(report, reason) for report in reports),
        )
        self._start_trials(self._joined)

    def _start_trials(self, reports: Sequence[LayerReport]) -> None:
        """Try each device's backends, one after the other, in a thread of the device's own."""
        by_device: dict[str, list[tuple[BackendSpec, Device]]] = defaultdict(list)
        for _, spec, device in self._wanted(reports):
            by_device[device.device_id].append((spec, device))
        for device_id, pairs in by_device.items():
            if start_thread(f"probe-trials-{device_id}", partial(self._try_all, pairs)):
                self._try_all(pairs)  # there are no more threads, and maybe children all the same
            seconds = len(pairs) * (_MOST_BUSY * self._options.trial_seconds + _END_SECONDS)
            self._trials_end = max(self._trials_end, time.monotonic() + seconds)

    def _try_all(self, pairs: Sequence[tuple[BackendSpec, Device]]) -> None:
        for spec, device in pairs:
            self._news.put(
                guarded(partial(self._try, spec, device), partial(failed_trial, spec, device))
            )

    def _try(self, spec: BackendSpec, device: Device) -> Trial:
        trial = try_backend(
            spec,
            device,
            kernel_release=self._kernel_release,
            cache=self._cache,
            retry=self._options.retry,
            deadline_seconds=self._options.trial_seconds,
        )
        known = cached_measurement(
            spec,
            device,
            trial,
            kernel_release=self._kernel_release,
            num_threads=self._options.num_threads,
            cache=self._cache,
        )
        return known or trial

    def _reports(self) -> tuple[LayerReport, ...]:
        """The CPU's, and those of layers whose devices are certain."""
        if self._joined is not None:
            return (self._cpu, *self._joined)
        done = (
            self._looked[layer.name].report
            for layer in self._layers
            if self._looked[layer.name].is_done and not layer.is_joined
        )
        return (self._cpu, *done)

    def _wanted(self, reports: Sequence[LayerReport]) -> Iterator[tuple[str, BackendSpec, Device]]:
        return _wanted_trials(self._options, reports)

    def _is_cpu_tried(self) -> bool:
        cpu = [unit_id for unit_id, _, _ in self._wanted([self._cpu])]
        return not cpu or any(unit_id in self._trials for unit_id in cpu)

    def _is_all_tried(self) -> bool:
        wanted = self._wanted(self._reports())
        return all(unit_id in self._trials for unit_id, _, _ in wanted)


def _ignore(report: ProbeReport) -> None:
    pass
