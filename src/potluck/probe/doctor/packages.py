"""Checks for Python packages that a backend needs but that are not installed."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import Case, title
from potluck.probe.doctor.finding import Finding
from potluck.probe.trials.running import is_tried_on


def missing_packages(case: Case) -> Iterator[Finding]:
    """Check for GPUs that could be used if an extra of Potluck were installed."""
    for extra in dict.fromkeys(backend.extra for backend in case.lacking_backends):
        backends = [each for each in case.lacking_backends if each.extra == extra]
        devices = [
            device
            for device in case.accelerators
            if not device.problem and any(is_tried_on(each, device) for each in backends)
        ]
        packages = {name for each in backends for name in each.packages}
        missing = [name for name in case.missing_packages if name in packages]
        if devices:
            yield Finding(
                check="package",
                severity=case.severity(devices[0]),
                message=f"{', '.join(map(title, devices))} cannot be used until"
                f" {', '.join(missing)} is installed",
                command=f"pip install 'potluck[{extra}]'",
                device_id=devices[0].device_id,
            )
