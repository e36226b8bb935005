"""Packages of Python that a backend needs and that are not installed."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import Case, title
from potluck.probe.doctor.finding import Finding


def missing_packages(case: Case) -> Iterator[Finding]:
    """GPUs that could be used, were the extra of Potluck installed that brings a backend.

    Extras are called like the packages that they bring.
    """
    for package in case.missing_packages:
        devices = [
            device
            for device in case.accelerators
            if not device.problem
            and any(case.lacks(package, backend, device) for backend in case.backends)
        ]
        if devices:
            yield Finding(
                check="package",
                severity=case.severity(devices[0]),
                message=f"{', '.join(map(title, devices))} could be used, and the package "
                f"{package} is not installed",
                command=f"pip install 'potluck[{package}]'",
                device_id=devices[0].device_id,
            )
