"""Checks wheels on hosts: what ``potluck wheel check`` says, without its command line.

Whoever checks many wheels on many hosts makes a ``PreparedWheel`` and a ``HostCheck`` of each once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from potluck.portability.host import Host
from potluck.portability.host_check import HostCheck
from potluck.portability.needs import read_needs
from potluck.portability.prepared_wheel import PreparedWheel
from potluck.portability.wheel_report import WheelReport


def check_wheel(path: Path, hosts: Iterable[Host], *, beside: Iterable[Path] = ()) -> WheelReport:
    """Read a wheel, an ELF file or a folder, and check it on each host.

    ``beside`` are other wheels that get installed with it. Raises ``WheelFileError``.
    """
    wheel = PreparedWheel(read_needs(path), beside=[read_needs(each) for each in beside])
    return check_on_hosts(wheel, (HostCheck(host) for host in hosts))


def check_on_hosts(wheel: PreparedWheel, checks: Iterable[HostCheck]) -> WheelReport:
    """One wheel on several hosts, in their order."""
    return WheelReport(
        file=wheel.needs.file,
        distribution=wheel.needs.distribution,
        minima=wheel.minima,
        promise=wheel.promise,
        hosts=tuple(check.check(wheel) for check in checks),
    )
