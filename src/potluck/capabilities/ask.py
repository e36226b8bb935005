"""``potluck.device_capabilities``: the probe, asked so that no machine and no caller is harmed."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.capabilities.unknown import unknown_node, unnamed_machine
from potluck.types.capabilities import DeviceCapabilities

if TYPE_CHECKING:
    from potluck.types.hardware import ProbeReport

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_SECONDS = 10.0
"""Trying the native backend takes one to three on a small board, and NVML under one."""

_LEAST_SECONDS = 1.0
"""To import the probe and to read files, on a board that is busy."""

_FIND_SHARE = 0.5
"""Of the time, for finding devices; the rest is for trying them."""

_Tell = Callable[[DeviceCapabilities], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    end: float
    measure: bool
    backend: str | None
    allow_software: bool


def device_capabilities(
    *,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    measure: bool = False,
    backend: str | None = None,
    allow_software: bool = False,
) -> DeviceCapabilities:
    """What this node can do: the unit that serves, and all devices in the same way.

    Never raises because of the machine, and returns after ``timeout_seconds`` (1 at least) with
    what is known by then: what is not known is None, and its source says why. What has begun goes
    on in the background, so that a later call knows it.

    Files are read in threads of this process. No library of a driver is loaded into it: what
    touches one runs in a child process with a deadline and a limit of memory. Backends are tried as
    ``potluck probe`` tries them, and what they gave is kept in the probe's cache: the first call
    takes seconds, later ones a fraction of one. ``measure`` measures the rates that are not known
    yet, which takes seconds for each unit; without it they are those that ``potluck probe
    --measure`` or an agent measured before, else derived or from a table. ``backend`` and
    ``allow_software`` choose as ``--backend`` and ``--allow-software`` do.

    May be called at any time, in any thread and after a fork. It blocks: in a coroutine use
    ``await asyncio.to_thread(potluck.device_capabilities)``.
    """
    seconds = max(_LEAST_SECONDS, timeout_seconds)
    end = time.monotonic() + seconds
    question = _Question(end=end, measure=measure, backend=backend, allow_software=allow_software)
    answers: queue.SimpleQueue[DeviceCapabilities | None] = queue.SimpleQueue()

    def ask() -> None:
        _ask(question, answers.put)
        answers.put(None)

    try:
        threading.Thread(target=ask, name="capabilities", daemon=True).start()
    except RuntimeError:  # there may be no more threads, or the interpreter is about to end
        ask()
    latest = None
    try:
        while (answer := answers.get(timeout=max(0.0, end - time.monotonic()))) is not None:
            latest = answer
    except queue.Empty:
        _log.info("the probe has not ended after %g s", seconds)
    return latest or unknown_node(f"nothing was found out within {seconds:g} s")


def _ask(question: _Question, tell: _Tell) -> None:
    """Tell what is known each time that more is, or why nothing is."""
    has_told = False

    def told(capabilities: DeviceCapabilities) -> None:
        nonlocal has_told
        has_told = True
        tell(capabilities)

    try:
        _probe(question, told)
    except Exception as error:  # noqa: BLE001 - the border to a caller that expects none
        reason = f"the probe failed with {type(error).__name__}: {error}"
        _log.warning("%s", reason)
        _log.debug("%s", reason, exc_info=True)
        if not has_told:
            tell(unknown_node(reason))


def _probe(question: _Question, tell: _Tell) -> None:
    # Imported here, as even a module may be what cannot be loaded.
    from potluck.capabilities.describe import describe_node
    from potluck.engines.backends import BACKENDS
    from potluck.probe.all_layers import LAYERS
    from potluck.probe.cache import ProbeCache, default_cache_path
    from potluck.probe.choose import choose_units
    from potluck.probe.cores import default_num_threads
    from potluck.probe.machine_name import machine_name
    from potluck.probe.probe import (
        Measuring,
        ProbeOptions,
        files_report,
        probe_node,
        waiting_devices,
    )
    from potluck.probe.system import THIS_MACHINE
    from potluck.types.unit import backend_of

    model = machine_name(THIS_MACHINE) or unnamed_machine()
    asked = question.backend
    options = ProbeOptions(
        backends=BACKENDS,
        num_threads=default_num_threads(),
        measuring=Measuring.IF_UNKNOWN if question.measure else Measuring.NEVER,
        deadline_seconds=_FIND_SHARE * (question.end - time.monotonic()),
        allow_software=question.allow_software,
        asked_backend=None if asked is None else backend_of(asked),
    )

    def tell_of(report: ProbeReport) -> None:
        units = choose_units(report, asked=asked, allow_software=question.allow_software)
        tell(describe_node(report, model, units, waiting_devices(report, options)))

    tell_of(files_report(THIS_MACHINE))
    probe_node(
        THIS_MACHINE,
        options,
        ProbeCache(default_cache_path(os.environ)),
        layers=LAYERS,
        on_report=tell_of,
    )
