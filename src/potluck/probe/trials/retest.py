"""Repeat the test of units in use, and quarantine them when they fail."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.probe.cache import ProbeCache
from potluck.probe.trials.quarantine import is_quarantined, quarantine
from potluck.probe.trials.running import TimeLeft, trial_key, try_interface
from potluck.types.backend import BackendSpec
from potluck.types.hardware import Device, Trial
from potluck.types.unit import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Retest:
    """A repeated self-test of a unit that worked before: ``problem`` is empty if it passed.

    ``fault`` classifies the failure. If it is None and there is a problem, the unit could not be
    tested, for example because the stage that runs on it uses its memory. If ``is_pending`` is set,
    the machine was too busy for the test to finish, and ``problem`` says so.
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
    """Run the self-test of a unit again, through the interface with which ``trial`` passed.

    The result replaces the previous one.
    """
    tried = try_interface(
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


def quarantine_unit(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    reason: str,
    *,
    kernel_release: str,
    cache: ProbeCache,
) -> None:
    """Quarantine a unit that failed in use, so that it is only retried on request."""
    quarantine(cache, trial_key(spec, device, trial.interface, kernel_release), reason)


def is_unit_quarantined(
    spec: BackendSpec, device: Device, trial: Trial, *, kernel_release: str, cache: ProbeCache
) -> bool:
    """Return whether a unit is still in quarantine."""
    return is_quarantined(cache, trial_key(spec, device, trial.interface, kernel_release))
