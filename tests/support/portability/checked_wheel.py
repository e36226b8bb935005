"""Whole checks, from files to reports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from potluck.portability.checks.host_check import HostCheck, check_on_hosts
from potluck.portability.checks.needs import read_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import WheelReport
from potluck.portability.hosts.host import Host


def check_wheel(path: Path, hosts: Iterable[Host]) -> WheelReport:
    """Read a wheel, an ELF file or a directory, and check it on each host.

    Raise ``WheelFileError`` if a file cannot be read.
    """
    return check_on_hosts(PreparedWheel(read_needs(path)), (HostCheck(host) for host in hosts))
