"""Probe a node with every detector and every backend, with a deadline.

First all detectors find devices, and OpenCL's devices are matched with those of the other
detectors; then backends are tried on each device. The CPU is tried immediately. Every detector, and
the trials of every device, run in their own thread, since even reading a file in ``/sys`` can block
forever behind a hung driver. Work that is not done by the deadline is reported as pending, and its
thread, which holds no resources, is abandoned.
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

from potluck.host.container import container
from potluck.host.cores import affine_cores
from potluck.host.guard import guarded, start_thread
from potluck.host.memory import memory_facts
from potluck.host.system import System
from potluck.host.uname import host_name
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector
from potluck.probe.detectors.cpu import DETECTOR as CPU_DETECTOR
from potluck.probe.detectors.cpu import cpu_facts
from potluck.probe.detectors.opencl import NAME as OPENCL
from potluck.probe.detectors.opencl import match_opencl
from potluck.probe.discovery import DeviceDiscovery
from potluck.probe.trials.measuring import cached_measurement, measure_backend
from potluck.probe.trials.running import failed_trial, is_tried_on, pending_trial, try_backend
from potluck.types.backend import BackendSpec
from potluck.types.hardware import DetectorReport, Device, ProbeReport, Trial

DEADLINE_SECONDS = 20.0
"""Time for finding devices: a driver may take this long to initialize."""

TRIAL_SECONDS = 60.0
"""Time for trying one backend on one device: kernels may have to be compiled first."""

_END_SECONDS = 4.0
"""Time for a child to end after its deadline (``host.child``), with a margin."""

_MOST_BUSY = 10
"""The most by which other processes using its CPU can prolong a child (``host.child``)."""

_FIND_SHARE = 0.6
"""The share of the time limit of a command that does not wait, for finding devices. It leaves the
other devices enough time for their tests, most of which are cached, if one driver hangs."""

_LEAST_WAIT_SECONDS = 0.5
"""The minimum for a command that has little time left on a busy machine: enough to read files and
the cache."""


class Measuring(enum.Enum):
    """Which units are measured; units that were measured before are in the cache."""

    NEVER = "never"
    IF_UNKNOWN = "if unknown"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """Options of a probe.

    ``retry`` repeats tests that crashed before. ``num_threads`` is the number of threads of the
    CPU's unit. ``deadline_seconds`` limits finding devices, and ``trial_seconds`` the trial of each
    backend on each device, not counting the time spent waiting for a CPU. ``wait_seconds`` limits
    the whole probe; None means no limit. Emulated GPUs are always listed; they are tried with
    ``allow_software``, or by the backend named ``requested_backend``.
    """

    backends: Sequence[BackendSpec]
    num_threads: int
    measuring: Measuring = Measuring.NEVER
    retry: bool = False
    deadline_seconds: float = DEADLINE_SECONDS
    trial_seconds: float = TRIAL_SECONDS
    wait_seconds: float | None = None
    allow_software: bool = False
    requested_backend: str | None = None


OnReport = Callable[[ProbeReport], None]
OnProgress = Callable[[str, float], None]
"""Called with a unit's id and the fraction of its measurement that is done."""


_News = queue.SimpleQueue[tuple[str, DetectorReport, bool] | Trial]
"""The name of a detector, its report, and whether that is final; or a trial."""


def probe_node(
    system: System,
    options: ProbeOptions,
    cache: ProbeCache,
    *,
    detectors: Sequence[Detector],
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
) -> ProbeReport:
    """Find this node's devices and test which of them work; never raises because of the machine.

    ``on_report`` is called in this thread, first when a backend was tried on the CPU, then whenever
    a detector is done or a backend was tried; later reports include everything in earlier ones. The
    result has ``is_complete`` set; parts that missed their deadline are included as far as they
    were known, and marked as pending. A detector or backend that ``wait_seconds`` cuts short is not
    quarantined: its child ends with this process, and the next probe tries again. Measuring comes
    last, one unit after the other, and has no overall deadline.
    """
    tell = on_report or (lambda _: None)
    probe = _Probe(system, options, cache, detectors)
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
    """Return the node, its memory and its CPU from files, without queries or trials."""
    return replace(_nothing(system), detectors=(CPU_DETECTOR.find(system),))


def _nothing(system: System) -> ProbeReport:
    """Return a report without devices."""
    return ProbeReport(
        host_name=host_name(),
        kernel=os.uname().release,
        container=container(system),
        cpu=cpu_facts(system, num_affine_cores=len(affine_cores())),
        memory=memory_facts(system),
        detectors=(),
        trials=(),
        is_complete=False,
    )


def waiting_devices(report: ProbeReport, options: ProbeOptions) -> frozenset[str]:
    """Return the ids of devices in ``report`` on which a backend is still to be tried. Pure."""
    tried = {trial.unit_id for trial in report.trials}
    return frozenset(
        device.device_id
        for unit_id, _, device in _wanted_trials(options, report.detectors)
        if unit_id not in tried
    )


def _wanted_trials(
    options: ProbeOptions, reports: Sequence[DetectorReport]
) -> Iterator[tuple[str, BackendSpec, Device]]:
    """Yield the trials to run on the devices of ``reports``, with the units' ids."""
    for report in reports:
        for device in report.devices:
            for spec in options.backends:
                if is_tried_on(
                    spec,
                    device,
                    allow_software=options.allow_software,
                    requested_backend=options.requested_backend,
                ):
                    yield f"{device.device_id}/{spec.name}", spec, device


class _Probe:
    """A running probe. It belongs to one thread; other threads only send it results."""

    def __init__(
        self,
        system: System,
        options: ProbeOptions,
        cache: ProbeCache,
        detectors: Sequence[Detector],
    ) -> None:
        self._options = options
        self._wanted = partial(_wanted_trials, options)
        self._cache = cache
        self._news: _News = queue.SimpleQueue()
        self._started = started = time.monotonic()
        wait_seconds = math.inf
        if options.wait_seconds is not None:
            wait_seconds = max(_LEAST_WAIT_SECONDS, options.wait_seconds)
        self._last = started + wait_seconds
        self._end = started + min(options.deadline_seconds, _FIND_SHARE * wait_seconds)
        looker = DeviceDiscovery(
            system=system,
            cache=cache,
            retry=options.retry,
            end=started + options.deadline_seconds,
        )
        self._found = {each.name: DetectorReport(detector=each.name) for each in detectors}
        self._running = set(self._found)
        for detector in detectors:
            problem = start_thread(f"probe-{detector.name}", partial(self._look, looker, detector))
            if problem:
                unseen = DetectorReport(
                    detector=detector.name, problems=(f"was not examined: {problem}",)
                )
                self._news.put((detector.name, unseen, True))
        self._cpu = looker.find(CPU_DETECTOR)
        self._joined: tuple[DetectorReport, ...] | None = None
        self._trials: dict[str, Trial] = {}
        self._trials_end = 0.0
        self._nothing = _nothing(system)
        self._start_trials([self._cpu])

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._joined is not None and self._is_all_tried()

    def wait(self) -> bool:
        """Wait for a result or the next deadline; return whether there is something new to report.

        There is nothing to report before the CPU was tried.
        """
        end = min(self._last, self._end if self._joined is None else self._trials_end)
        is_new = True
        try:
            match self._news.get(timeout=max(0.0, end - time.monotonic())):
                case Trial() as trial:
                    self._trials.setdefault(trial.unit_id, trial)
                case name, report, is_final:
                    self._found[name] = report
                    if is_final:
                        self._running.discard(name)
                    is_new = is_final and bool(report.devices)
        except queue.Empty:
            self._give_up()
        if self._joined is None and not self._running:
            self._join()
            is_new = True
        return is_new and self._is_cpu_tried()

    def report(self) -> ProbeReport:
        """Return everything that is known so far."""
        detectors = self._reports()
        order = [unit_id for unit_id, _, _ in self._wanted(detectors)]
        return replace(
            self._nothing,
            detectors=detectors,
            trials=tuple(self._trials[unit] for unit in order if unit in self._trials),
        )

    def measured(self, report: ProbeReport, on_progress: OnProgress | None) -> tuple[Trial, ...]:
        """Return the trials of ``report`` with the rates of the units that work."""
        specs = {spec.name: spec for spec in self._options.backends}
        devices = {device.device_id: device for device in report.devices}
        return tuple(
            measure_backend(
                specs[trial.backend],
                devices[trial.device_id],
                trial,
                num_threads=self._options.num_threads,
                cache=self._cache,
                retry=self._options.measuring is Measuring.ALWAYS,
                on_progress=None if on_progress is None else partial(on_progress, trial.unit_id),
            )
            for trial in report.trials
        )

    def _look(self, looker: DeviceDiscovery, detector: Detector) -> None:
        """Run in a separate thread: report the devices found from files, then the full result."""
        found = looker.find(detector)
        self._news.put((detector.name, found, False))
        self._news.put((detector.name, looker.ask(detector, found), True))

    def _give_up(self) -> None:
        """Mark missing results as pending, since the deadline has passed."""
        seconds = time.monotonic() - self._started
        if self._joined is None:
            reason = f"has not responded after {seconds:.0f} s"
            for name in self._running:
                report = self._found[name].with_problems(reason)
                self._found[name] = replace(report, is_pending=True)
            self._running.clear()
            return
        reason = f"its test did not finish within {seconds:.0f} s"
        for unit_id, spec, device in self._wanted(self._reports()):
            self._trials.setdefault(unit_id, pending_trial(spec, device, reason))

    def _join(self) -> None:
        """Match OpenCL's devices when all detectors are done, and start the trials of all of
        them.
        """
        reports = tuple(self._found.values())
        self._joined = guarded(
            lambda: match_opencl(reports),
            lambda reason: tuple(report.with_problems(reason) for report in reports),
        )
        self._start_trials(self._joined)

    def _start_trials(self, reports: Sequence[DetectorReport]) -> None:
        """Try each device's backends, one after the other, in a separate thread per device."""
        by_device: dict[str, list[tuple[BackendSpec, Device]]] = defaultdict(list)
        for _, spec, device in self._wanted(reports):
            by_device[device.device_id].append((spec, device))
        for device_id, pairs in by_device.items():
            if start_thread(f"probe-trials-{device_id}", partial(self._try_all, pairs)):
                self._try_all(pairs)  # no more threads can be started, but perhaps children can
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
            cache=self._cache,
            retry=self._options.retry,
            deadline_seconds=self._options.trial_seconds,
        )
        known = cached_measurement(
            spec,
            device,
            trial,
            num_threads=self._options.num_threads,
            cache=self._cache,
        )
        return known or trial

    def _reports(self) -> tuple[DetectorReport, ...]:
        """Return the reports of the CPU and of the detectors whose devices are final: those of
        OpenCL may be the same as others', so they are not final before they were matched.
        """
        if self._joined is not None:
            return (self._cpu, *self._joined)
        done = (
            report
            for name, report in self._found.items()
            if name not in self._running and name != OPENCL
        )
        return (self._cpu, *done)

    def _is_cpu_tried(self) -> bool:
        cpu = [unit_id for unit_id, _, _ in self._wanted([self._cpu])]
        return not cpu or any(unit_id in self._trials for unit_id in cpu)

    def _is_all_tried(self) -> bool:
        wanted = self._wanted(self._reports())
        return all(unit_id in self._trials for unit_id, _, _ in wanted)
