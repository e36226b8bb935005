"""A survey as a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.platforms.survey import (
    OlderSystem,
    Survey,
    SurveyedPlatform,
    SurveyedProject,
    Taken,
)

_OURS = "2.17"
_HEAD = """\
# Where Potluck can be installed

Made by `python -m tools.platforms` on {date}, from the package index and `pyproject.toml`; the
figures are in `tools/platforms/platforms.json`.

Potluck's own wheels require glibc {ours} on both architectures. An installation also needs the
wheels of its dependencies, which require newer versions: pip accepts a wheel only if the C library
is at least as new as the wheel's tag says. `potluck wheel check` shows whether a tag is correct.
"""
_FLOORS = """\
## The oldest glibc of an installation

With all dependencies installed from wheels, in the versions that pip chooses on a new system.
"""
_PROJECTS = """\
## Dependencies with native code

The oldest glibc that a wheel of the newest version supports. A single figure for an architecture
applies to every Python from {first} to {last}.
"""
_PURE = """\
Without native code, for any system: {names}.
"""
_OLD_CPUS = """\
## On older CPUs

Potluck's wheels and those of its dependencies run on every aarch64 CPU, and on every x86-64 CPU
with SSE3, except NumPy 2.4 and newer, which require x86-64-v2 (SSE4.2 and POPCNT: Intel since 2008,
AMD since 2011). On an older CPU, every command ends with a message to that effect, until an older
NumPy is installed: `pip install 'numpy<2.4'` (`src/potluck/host/cpu_baseline.py`).
"""
_OLDER = """\
## On older systems

What pip does there by default. Because pip does not report that it chose an older version, the
lower bounds in `pyproject.toml` exclude old versions (`tests/unit/tools/test_platforms.py`).
"Builds" means from source, which requires a compiler, often also for Rust; "as a wheel" is what pip
chooses with `--only-binary=:all:`.
"""


def page(survey: Survey) -> str:
    """Return the whole page, in Markdown."""
    pythons = sorted({each.python for each in survey.platforms}, key=Version)
    parts = [
        _HEAD.format(date=survey.date, ours=_OURS),
        _FLOORS,
        _floor_table(survey, pythons),
        _PROJECTS.format(first=pythons[0], last=pythons[-1]),
        _project_table(survey),
        _PURE.format(names=", ".join(_pure_projects(survey))),
        _OLD_CPUS,
        _OLDER,
        _older_list(survey),
    ]
    return "\n".join(parts)


def machines(survey: Survey) -> tuple[str, ...]:
    """Return the machines in the survey's order."""
    return tuple(dict.fromkeys(each.machine for each in survey.platforms))


def floor(platform: SurveyedPlatform) -> tuple[str, tuple[str, ...]]:
    """Return the oldest glibc with which the newest version of everything installs from wheels, and
    the projects that require it; ``source`` and the projects without a wheel, if there are any.
    """
    of_projects = {each.name: each.takes.glibc for each in platform.projects}
    if built := tuple(name for name, glibc in of_projects.items() if glibc == "source"):
        return "source", built
    highest = max((_order(glibc) for glibc in of_projects.values()), default=_order(_OURS))
    if highest <= _order(_OURS):
        return _OURS, ("potluck",)
    names = tuple(name for name, glibc in of_projects.items() if _order(glibc) == highest)
    return ".".join(map(str, highest)), names


def _order(glibc: str) -> tuple[int, ...]:
    return () if glibc == "any" else tuple(map(int, glibc.split(".")))


def _floor_table(survey: Survey, pythons: Sequence[str]) -> str:
    rows = [["", *(f"Python {python}" for python in pythons)]]
    for machine in machines(survey):
        cells = [machine]
        for platform in _of_machine(survey, machine):
            glibc, names = floor(platform)
            by = ", ".join(f"`{name}`" for name in names)
            cells.append(f"built: {by}" if glibc == "source" else f"{glibc} ({by})")
        rows.append(cells)
    return _table(rows)


def _project_table(survey: Survey) -> str:
    native = _native_projects(survey)
    rows = [["project", "for", *machines(survey)]]
    rows += [
        [
            f"`{name}`",
            _required_by(survey, name),
            *(_floors_of(survey, machine, name) for machine in machines(survey)),
        ]
        for name in native
    ]
    return _table(rows)


def _floors_of(survey: Survey, machine: str, name: str) -> str:
    """Return one figure if it is the same for all Pythons, or one for each."""
    found = [
        (platform.python, f"{project.takes.glibc} ({project.takes.version})")
        for platform in _of_machine(survey, machine)
        for project in platform.projects
        if project.name == name
    ]
    kinds = {figure for _, figure in found}
    if len(kinds) == 1 and len(found) == len(_of_machine(survey, machine)):
        return kinds.pop()
    return "; ".join(
        f"{figure} on {', '.join(python for python, _ in group)}"
        for figure, group in groupby(found, key=lambda each: each[1])
    )


def _older_list(survey: Survey) -> str:
    lines = []
    for machine in machines(survey):
        platforms = _of_machine(survey, machine)
        for name in sorted({project.name for each in platforms for project in each.projects}):
            pythons_by_span: dict[tuple[str, str], list[str]] = {}
            for platform in platforms:
                for project in platform.projects:
                    if project.name == name:
                        for glibc, what in _spans(project):
                            pythons_by_span.setdefault((glibc, what), []).append(platform.python)
            for (glibc, what), pythons in pythons_by_span.items():
                lines.append(
                    f"- {machine}, glibc {glibc}, Python {', '.join(pythons)}: `{name}` {what}"
                )
    return "\n".join(lines) + "\n" if lines else "Nothing: every version has wheels for them.\n"


def _spans(project: SurveyedProject) -> list[tuple[str, str]]:
    """Return ranges of older C libraries with which pip does the same, and what it does."""
    return [
        (glibcs[0] if len(glibcs) == 1 else f"{glibcs[0]} to {glibcs[-1]}", what)
        for what, group in groupby(project.older, key=lambda each: _what_happens(each, project))
        for glibcs in [[each.glibc for each in group]]
    ]


def _what_happens(older: OlderSystem, project: SurveyedProject) -> str:
    taken, wheel = older.takes, older.takes_wheel
    if taken is None:
        return "cannot be installed: pip finds no version"
    if taken.glibc != "source":
        return f"is {_dated(taken)} in place of {_dated(project.takes)}"
    if wheel is None:
        return f"builds {taken.version}; there is no wheel"
    return f"builds {taken.version}; as a wheel it is {_dated(wheel)}"


def _dated(taken: Taken) -> str:
    return f"{taken.version} ({taken.uploaded[:7]})"


def _of_machine(survey: Survey, machine: str) -> tuple[SurveyedPlatform, ...]:
    return tuple(each for each in survey.platforms if each.machine == machine)


def _projects(survey: Survey) -> Iterable[SurveyedProject]:
    return (project for platform in survey.platforms for project in platform.projects)


def _native_projects(survey: Survey) -> list[str]:
    return sorted({each.name for each in _projects(survey) if each.takes.glibc != "any"})


def _pure_projects(survey: Survey) -> list[str]:
    return sorted({each.name for each in _projects(survey)} - {*_native_projects(survey)})


def _required_by(survey: Survey, name: str) -> str:
    own = {canonicalize_name(Requirement(each).name) for each in survey.requirements}
    by = {who for each in _projects(survey) if each.name == name for who in each.required_by}
    return ", ".join((["Potluck"] if name in own else []) + [f"`{who}`" for who in sorted(by)])


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines) + "\n"
