"""Units that are in use: tested again, and put in quarantine when they fail."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.probe.cache import ProbeCache
from potluck.probe.quarantine import is_quarantined, quarantine
from potluck.probe.trials import TimeLeft, trial_key, try_through
from potluck.types.hardware import BackendSpec, Device, Trial
from potluck.types.unit import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Retest:
    """The self-test of a unit that worked, repeated: ``problem`` is empty if it passed.

    ``fault`` is what that shows of the unit. None with a problem: it could not be tested, as its
    memory may be taken by the very stage that runs on it. ``is_pending``: the machine was too busy
    for the test to end, and ``problem`` says so.
    """

    problem: str
    fault: Fault | None
    is_pending: bool = False


def retest(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    *,
    kernel_release: str,
    cache: ProbeCache,
    deadline_seconds: float,
) -> Retest:
    """Run the self-test of a unit again, through the interface that ``trial`` has passed by.

    The result takes the place of what was known.
    """
    tried = try_through(
        spec,
        device,
        trial.interface,
        kernel_release=kernel_release,
        cache=cache,
        retry=True,
        time_left=TimeLeft(deadline_seconds),
    )
    problem = "" if tried.trial.works else tried.trial.reason
    return Retest(problem=problem, fault=tried.fault, is_pending=tried.trial.is_pending)


def condemn(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    reason: str,
    *,
    kernel_release: str,
    cache: ProbeCache,
) -> None:
    """Quarantine a unit that failed in use: it is tried again only where somebody asks for it."""
    key = trial_key(spec, device, trial.interface, kernel_release)
    cache.remove(key)
    quarantine(cache, key, reason)


def is_condemned(
    spec: BackendSpec, device: Device, trial: Trial, *, kernel_release: str, cache: ProbeCache
) -> bool:
    """Whether a unit is still in quarantine."""
    return is_quarantined(cache, trial_key(spec, device, trial.interface, kernel_release))
