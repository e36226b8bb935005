"""Backends that were tried and did not work, and devices that are not touched any more."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import Case
from potluck.probe.doctor.finding import Finding, Severity

_RETRY = "potluck probe --retry"
_NOT_TRIED = "not tried again"
"""How the probe says that something is in quarantine."""


def failed_trials(case: Case) -> Iterator[Finding]:
    """A unit whose self-test failed; not of devices whose own problem explains that."""
    explained = {device.device_id for device in case.report.devices if device.problem}
    for trial in case.report.trials:
        if trial.works or trial.device_id in explained:
            continue
        yield Finding(
            check="self-test",
            severity=Severity.PREVENTS,
            message=f"{trial.unit_id} does not work: {trial.reason}",
            command=_RETRY,
            details="tries again, also what is in quarantine",
            device_id=trial.device_id,
        )


def quarantined_queries(case: Case) -> Iterator[Finding]:
    """A vendor's library that crashed or hung the last time, and is not asked any more."""
    for layer in case.report.layers:
        for problem in layer.problems:
            if _NOT_TRIED in problem:
                yield Finding(
                    check="quarantine",
                    severity=Severity.NOTE,
                    message=f"{layer.layer}: {problem}",
                    command=_RETRY,
                )
