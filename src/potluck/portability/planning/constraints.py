"""Write a plan as constraints files for pip's option ``-c``.

There is one file with environment markers if these can distinguish the hosts, or else one per host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import UsageError
from potluck.portability.planning.plan import HostPlan
from potluck.portability.planning.target import Target


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Environment:
    """The properties of a host that markers can test."""

    machine: str
    python: tuple[int, int]

    def marker(self, others: Iterable[_Environment]) -> str:
        """Return a marker that is true here and for none of the others."""
        is_machine = any(each.machine != self.machine for each in others)
        is_python = any(each.python != self.python for each in others)
        version = ".".join(map(str, self.python))
        parts = []
        if is_machine:
            parts.append(f'platform_machine == "{self.machine}"')
        if is_python:
            parts.append(f'python_version == "{version}"')
        return " and ".join(parts)


def constraints_files(
    plans: Sequence[HostPlan], targets: Sequence[Target], output: Path
) -> Mapping[Path, str]:
    """Return the files to write, with their contents: ``output`` alone, or one per host next to it,
    with the host's name in the file name.
    """
    by_name = {each.name: each for each in targets}
    of_environments: dict[_Environment, dict[str, str]] = {}
    is_determined_by_markers = True
    for plan in plans:
        target = by_name[plan.host]
        environment = _Environment(machine=target.host.machine, python=target.python.version)
        versions = of_environments.setdefault(environment, dict(plan.versions()))
        is_determined_by_markers = is_determined_by_markers and versions == plan.versions()
    if is_determined_by_markers:
        return {output: _text([each.host for each in plans], _with_markers(of_environments))}
    return {
        output.with_name(f"{output.stem}-{plan.host}{output.suffix}"): _text(
            [plan.host], (f"{name}=={version}" for name, version in plan.versions().items())
        )
        for plan in plans
    }


def write_constraints(files: Mapping[Path, str]) -> None:
    """Write them. Raise ``UsageError`` on failure."""
    for path, text in files.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--output {path}: {error.strerror}", hint="give a file in an existing directory"
            ) from None


def _text(hosts: Sequence[str], lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (f"# For {', '.join(hosts)}", *lines))


def _with_markers(versions: Mapping[_Environment, Mapping[str, str]]) -> Iterator[str]:
    names = sorted({name for each in versions.values() for name in each})
    for name in names:
        found = {environment: each[name] for environment, each in versions.items() if name in each}
        if len(set(found.values())) == 1:
            yield f"{name}=={next(iter(found.values()))}"
            continue
        for environment, version in sorted(found.items()):
            others = [each for each, other in found.items() if other != version]
            yield f"{name}=={version} ; {environment.marker(others)}"
