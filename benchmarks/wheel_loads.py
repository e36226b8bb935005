"""Compare predictions for a wheel's shared objects with the dynamic linker of a root."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import FileReport
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.writing import host_document
from tools.roots.enter import Root
from tools.roots.loads import try_loads
from tools.roots.wheel_site import SITE

_PYTHON = HostPython(implementation="cpython", version=(3, 11))
"""The interpreter that opens the files: ``tools.roots.interpreter``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One shared object on one root. ``predicted`` and ``real`` say why it does not load, each in
    its own words, or nothing where it does; ``real`` may also be the signal that opening it ended
    with, after it was linked.
    """

    file: str
    predicted: str
    real: str

    @property
    def is_linked(self) -> bool:
        """Whether the dynamic linker accepted it."""
        return not self.real or self.real.startswith("signal ")

    @property
    def is_as_predicted(self) -> bool:
        """Whether both say that it loads, or both that it does not."""
        return self.is_linked == (not self.predicted)


def describe_root(root: Root) -> Host:
    """Return the root as a host, read back from the JSON of its description."""
    host = dataclasses.replace(describe_host(root.path, name=root.name), python=_PYTHON)
    return read_host(json.loads(json.dumps(host_document(host))))


def compare_loads(
    wheel: PreparedWheel, prefix: Path, root: Root, check: HostCheck
) -> tuple[Load, ...]:
    """Compare every shared object of a wheel that ``unzip_wheel`` has unpacked to ``prefix``.

    Raises as ``try_loads`` does.
    """
    predicted = predict_loads(wheel, check)
    real = try_loads(root, prefix, tuple(f"{SITE}/{file}" for file in predicted))
    return tuple(
        Load(file=file, predicted=why, real=real[f"{SITE}/{file}"])
        for file, why in predicted.items()
    )


def predict_loads(wheel: PreparedWheel, check: HostCheck) -> dict[str, str]:
    """Return why the dynamic linker will not open each shared object alone; empty if it will."""
    programs = {each.path for each in wheel.tree if each.is_executable}
    files = check.check(wheel).files
    return {each.path: _reason(each) for each in files if each.path not in programs}


def _reason(file: FileReport) -> str:
    if file.opens_alone:
        return ""
    messages = [finding.message for finding in file.findings]
    return messages[0] if messages else "for no stated reason"
