"""``potluck.device_capabilities``: run the probe without risk for the caller or the machine."""

from __future__ import annotations

import logging
import os
import platform
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.types.backend import DeviceKind
from potluck.types.capabilities import DeviceCapabilities, Flops, Source, Sources, Support
from potluck.types.hardware import Origin
from potluck.types.unit import Role

if TYPE_CHECKING:
    from potluck.types.hardware import ProbeReport


_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 10.0
"""Trying the native backend takes one to three seconds on a small board, and NVML less than one."""

_LEAST_SECONDS = 1.0
"""The time to import the probe and to read files on a busy board."""

_MOST_SECONDS = 86400.0
"""Stands for any longer time: the functions that wait cannot take an infinite one."""

_FIND_SHARE = 0.5
"""The share of the time for finding devices; the rest is for trying them."""


def device_capabilities(
    *,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    measure: bool = False,
    backend: str | None = None,
    allow_software: bool = False,
) -> DeviceCapabilities:
    """Return this node's capabilities: those of the unit that serves, and of all devices.

    Never raises because of the machine, and returns after ``timeout_seconds`` (1 to a day) with the
    values known by then: unknown values are None, and their source says why. Running tests continue
    in the background, so that a later call has their results.

    Files are read in threads of this process. No driver library is loaded into this process: all
    code that uses one runs in a child process with a deadline and a memory limit. Backends are
    tried as in ``potluck probe``, and the results are stored in the probe's cache: the first call
    takes seconds, later ones a fraction of a second. With ``measure``, unknown rates are measured,
    which takes seconds per unit. Without it, rates are those that ``potluck probe --measure`` or an
    agent measured before, or else derived or from a table. ``backend`` and ``allow_software`` have
    the same effect as ``--backend`` and ``--allow-software``.

    May be called at any time, in any thread and after a fork. It blocks: in a coroutine use
    ``await asyncio.to_thread(potluck.device_capabilities)``.
    """
    seconds = min(max(_LEAST_SECONDS, timeout_seconds), _MOST_SECONDS)
    end = time.monotonic() + seconds
    answers: queue.SimpleQueue[DeviceCapabilities | str] = queue.SimpleQueue()

    def ask() -> None:
        """Report the capabilities whenever they change, and finally the reason of a failure, or an
        empty text.
        """
        try:
            _probe(
                answers.put,
                end,
                measure=measure,
                backend=backend,
                allow_software=allow_software,
            )
        except Exception as error:  # noqa: BLE001 - the caller expects no exceptions
            reason = f"the probe failed with {type(error).__name__}: {error}"
            _log.warning("%s", reason)
            _log.debug("%s", reason, exc_info=True)
            answers.put(reason)
        else:
            answers.put("")

    try:
        threading.Thread(target=ask, name="capabilities", daemon=True).start()
    except RuntimeError:  # no more threads can be started, or the interpreter is shutting down
        ask()
    latest, reason = None, ""
    try:
        while not isinstance(answer := answers.get(timeout=max(0.0, end - time.monotonic())), str):
            latest = answer
        reason = answer
    except queue.Empty:
        _log.info("the probe did not finish within %g s", seconds)
    return latest or unknown_node(reason or f"there was no result within {seconds:g} s")


def _probe(
    tell: Callable[[DeviceCapabilities], None],
    end: float,
    *,
    measure: bool,
    backend: str | None,
    allow_software: bool,
) -> None:
    # Imported here, since a module may fail to load.
    from potluck.capabilities.describe import describe_node
    from potluck.engines.backends import BACKENDS
    from potluck.host.boards import machine_name
    from potluck.host.cores import default_num_threads
    from potluck.host.system import THIS_MACHINE
    from potluck.probe.all_detectors import DETECTORS
    from potluck.probe.cache import ProbeCache, default_cache_path
    from potluck.probe.choose import choose_units
    from potluck.probe.probe import (
        Measuring,
        ProbeOptions,
        files_report,
        probe_node,
        waiting_devices,
    )
    from potluck.types.unit import backend_of

    model = machine_name(THIS_MACHINE) or _unnamed_machine()
    options = ProbeOptions(
        backends=BACKENDS,
        num_threads=default_num_threads(),
        measuring=Measuring.IF_UNKNOWN if measure else Measuring.NEVER,
        deadline_seconds=_FIND_SHARE * (end - time.monotonic()),
        allow_software=allow_software,
        requested_backend=None if backend is None else backend_of(backend),
    )

    def send_report(report: ProbeReport) -> None:
        units = choose_units(report, requested=backend, allow_software=allow_software)
        tell(describe_node(report, model, units, waiting_devices(report, options)))

    send_report(files_report(THIS_MACHINE))
    probe_node(
        THIS_MACHINE,
        options,
        ProbeCache(default_cache_path(os.environ)),
        detectors=DETECTORS,
        on_report=send_report,
    )


def _unnamed_machine() -> str:
    """Return the name of an unidentified machine: the output of ``uname -m``."""
    return f"{platform.machine() or 'unknown'} machine"


def unknown_node(reason: str) -> DeviceCapabilities:
    """Return a node with an unknown CPU, with the reason."""
    nothing = Source(origin=Origin.UNKNOWN, text=reason)
    no_support = Support(is_supported=False, reason=reason)
    cpu = DeviceCapabilities(
        model=_unnamed_machine(),
        chip=platform.machine() or "unknown model",
        memory=None,
        total_memory=None,
        flops=Flops(),
        read_bytes_per_second=None,
        f16=no_support,
        int8=no_support,
        sources=Sources(
            memory=nothing,
            total_memory=nothing,
            fp32=nothing,
            fp16=nothing,
            int8=nothing,
            read_bytes_per_second=nothing,
        ),
        device_id="cpu",
        kind=DeviceKind.CPU,
        is_software=False,
        backend="",
        role=Role.OUT,
        reason=reason,
    )
    return replace(cpu, devices=(cpu,))
