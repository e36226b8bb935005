"""The wheels that are already on this node, and those of them that are compatible with a machine.

They are in folders that the user names, in the store, or rebuilt from the distributions that this
node runs with. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from potluck.cluster.invitations.software import installed_wheel
from potluck.cluster.invitations.software.installed_wheel import (
    installed_distribution,
    wheel_of_installed,
)
from potluck.errors import WheelFileError
from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import cached_needs
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.finding import Verdict
from potluck.portability.hosts.host import Host
from potluck.portability.hosts.installed import running_python

OF_THIS_NODE = "of-this-node"
"""The folder of the store for wheels rebuilt from installed distributions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A compatible wheel. ``requires`` are its Requires-Dist lines."""

    name: str
    version: str
    requires: tuple[str, ...]
    path: Path


class LocalWheels:
    """The wheels on this node that are compatible with one host. Not thread-safe.

    ``folders`` are searched before ``store``, to which rebuilt wheels are added. ``needs`` caches
    what was read from wheels (``needs.cached_needs``).
    """

    def __init__(
        self, host: Host, *, folders: Sequence[Path], store: Path, needs: Path | None
    ) -> None:
        self.host = host
        self.python = host.python or running_python()
        self._check = HostCheck(host)
        self._folders = (*folders, store)
        self._made = store / OF_THIS_NODE
        self._needs = needs

    def find(self, name: str, version: str, refusals: list[str]) -> Release | None:
        """Return a wheel of this version that installs and loads on the host; None if there is none
        here.

        The reasons why others do not are added to ``refusals``.
        """
        for path in self._candidates(name, version, refusals):
            release = self._release(path, refusals)
            if release is not None:
                return release
        return None

    def _candidates(self, name: str, version: str, refusals: list[str]) -> Iterator[Path]:
        for path in _wheels(self._folders, name, version):
            if name != installed_wheel.NAME or installed_wheel.is_of_this_node(path):
                yield path
            else:
                refusals.append(f"{path.name} was built from other Python sources than this node's")
        installed = installed_distribution(name)
        if installed is not None and installed.version == version:
            try:
                yield wheel_of_installed(installed, self._made)
            except (WheelFileError, OSError) as error:
                refusals.append(str(error))

    def _release(self, path: Path, refusals: list[str]) -> Release | None:
        """Return the release in a wheel, if the wheel is compatible."""
        try:
            needs = cached_needs(path, self._needs)
        except WheelFileError as error:
            refusals.append(str(error))
            return None
        report = self._check.check(PreparedWheel(needs))
        if report.refusal is not None:
            refusals.append(f"{path.name}: {report.refusal.message}")
            return None
        if report.verdict is Verdict.WILL_NOT_LOAD:
            refusals.append(f"{path.name}: {report.findings[0].message}")
            return None
        found = needs.distribution
        if found is None:
            return None
        return Release(name=found.name, version=found.version, requires=found.requires, path=path)


def _wheels(folders: Sequence[Path], name: str, version: str) -> Iterator[Path]:
    """Yield the wheels of one version of a project in some folders."""
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            try:
                found, of_version, _, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            if (found, str(of_version)) == (canonicalize_name(name), version):
                yield path
