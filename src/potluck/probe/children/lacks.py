"""Prints the requirements of compiled files that this machine lacks, so that they do not load.

The arguments are the package that the files belong to (``numpy 2.4.6``), and a JSON object that
maps the names of the files in the package, by which they refer to each other, to their paths.
Prints ``{"lacks": [FINDING, …]}``, where each is a ``potluck.portability.finding.Finding``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import package_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.installed import describe_host
from potluck.portability.wheels.file import InstalledFiles


def lacks(label: str, files: Mapping[str, Path]) -> tuple[Finding, ...]:
    """Return the reasons why files do not load; empty if unknown."""
    prepared = PreparedWheel(package_needs(InstalledFiles(files), label))
    report = HostCheck(describe_host()).check(prepared)
    return tuple(each for each in report.findings if each.severity is Severity.FATAL)


if __name__ == "__main__":
    named = msgspec.json.decode(sys.argv[2], type=dict[str, str])
    found = lacks(sys.argv[1], {name: Path(path) for name, path in named.items()})
    sys.stdout.write(msgspec.json.encode({"lacks": found}).decode())
