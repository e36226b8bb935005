"""Prints what compiled files need of this machine in vain, so that they do not load.

Its arguments are what the files belong to (``numpy 2.4.6``), and a JSON object of their paths by
their names in it: by these they look for one another. Prints ``{"lacks": [FINDING, …]}``, findings
as ``potluck.portability.finding.Finding`` has them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from potluck.portability.finding import Finding, Severity
from potluck.portability.host_check import HostCheck
from potluck.portability.installed_host import describe_host
from potluck.portability.needs import package_needs
from potluck.portability.prepared_wheel import PreparedWheel
from potluck.portability.wheel_file import InstalledFiles


def lacks(label: str, files: Mapping[str, Path]) -> tuple[Finding, ...]:
    """The reasons why files do not load; none where they do not tell."""
    prepared = PreparedWheel(package_needs(InstalledFiles(files), label))
    report = HostCheck(describe_host()).check(prepared)
    return tuple(each for each in report.findings if each.severity is Severity.FATAL)


if __name__ == "__main__":
    named = msgspec.json.decode(sys.argv[2], type=dict[str, str])
    found = lacks(sys.argv[1], {name: Path(path) for name, path in named.items()})
    sys.stdout.write(msgspec.json.encode({"lacks": found}).decode())
