"""Check wheels on hosts: the logic of ``potluck wheel check``, without its command line.

To check many wheels on many hosts, create one ``PreparedWheel`` per wheel and one ``HostCheck`` per
host.
"""

from __future__ import annotations

from collections.abc import Iterable

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import WheelReport


def check_on_hosts(wheel: PreparedWheel, checks: Iterable[HostCheck]) -> WheelReport:
    """Check one wheel on several hosts, and return the reports in the order of the hosts."""
    return WheelReport(
        file=wheel.needs.file,
        distribution=wheel.needs.distribution,
        minima=wheel.minima,
        promise=wheel.promise,
        hosts=tuple(check.check(wheel) for check in checks),
    )
