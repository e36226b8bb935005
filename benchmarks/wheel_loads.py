"""What is predicted of a wheel's shared objects on a root, beside what its dynamic linker does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potluck.portability.installed_host import describe_host

from potluck.portability.host import Host
from tools.roots.enter import Root
from tools.roots.loads import try_loads
from tools.roots.wheel_site import SITE, unzip_wheel


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
    def is_as_predicted(self) -> bool:
        """Whether both say that it loads, or both that it does not."""
        return bool(self.predicted) == (bool(self.real) and not self.real.startswith("signal "))


def describe_root(root: Root) -> Host:
    """The root as a host: what is in its folder, and an interpreter as ``try_loads`` uses it."""
    return describe_host(root.path)


def compare_loads(wheel: Path, unpacked: Path, root: Root, host: Host) -> tuple[Load, ...]:
    """Every shared object of a wheel, which ``unzip_wheel`` has unpacked to the folder."""
    predicted = predict_loads(wheel, host)
    real = try_loads(root, unpacked / SITE, tuple(predicted))
    return tuple(Load(file=file, predicted=why, real=real[file]) for file, why in predicted.items())


def predict_loads(wheel: Path, host: Host) -> dict[str, str]:
    """Every shared object of a wheel, and why it will not load, or nothing."""
    raise NotImplementedError


__all__ = ["Load", "compare_loads", "describe_root", "predict_loads", "unzip_wheel"]
