"""Plan versions of packages for hosts: the logic of ``potluck wheel plan``, without its command
line.

``Planner(index, hosts, …).plan(requirements)`` gives both answers; ``plan_host`` gives the wheels
for one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from potluck.errors import PotluckError, UsageError
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.planning.index import Index, Rejections, Releases
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.plan import Cost, HostPlan, Plan, PlannedWheel, Problem
from potluck.portability.planning.problems import Explainer
from potluck.portability.planning.provider import Choice, UnresolvableError, resolve
from potluck.portability.planning.release_variants import UnusedVariant
from potluck.portability.planning.target import (
    Target,
    all_wants,
    parse_requirements,
)
from potluck.portability.planning.wheel_reader import WheelReader


class UnplannableError(PotluckError):
    """There is no solution for a host. ``problem`` says why, and lists alternatives."""

    def __init__(self, problem: Problem) -> None:
        reasons = "; ".join(each.message for each in problem.reasons)
        super().__init__(
            f"no version of {problem.package} installs and loads on {', '.join(problem.hosts)}:"
            f" {reasons}",
            hint="; ".join(each.message for each in problem.nearest),
        )
        self.problem = problem


class Planner:
    """Plans for some hosts with one index. ``folder`` caches planned wheels that were downloaded
    whole, ``needs_folder`` what was read from any; None caches nothing. Not thread-safe.

    ``default_python`` is assumed for hosts whose Python is unknown. ``with_variants``: installers
    also choose among variants of wheels (PEP 825).
    """

    def __init__(
        self,
        index: Index,
        hosts: Iterable[Host],
        *,
        default_python: HostPython,
        folder: Path | None = None,
        needs_folder: Path | None = None,
        with_variants: bool = False,
    ) -> None:
        targets = [Target(host, default_python) for host in hosts]
        names = [each.name for each in targets]
        if len(set(names)) < len(names):
            raise UsageError("two hosts have the same name", hint="give each host only once")
        self.targets = tuple(targets)
        self.reader = WheelReader(index, folder=folder, needs_folder=needs_folder)
        self.judge = Judge(self.reader, targets, with_variants=with_variants)
        self._releases = Releases(index)
        self._rejections = Rejections()
        self._explainer = Explainer(self.judge, self._releases, self._rejections)

    def plan(self, texts: Sequence[str]) -> Plan:
        """Return both answers for requirements.

        Raise ``UsageError`` for an invalid requirement, and ``WheelDownloadError`` if the index
        cannot be read.
        """
        requirements = parse_requirements(texts)
        own: list[HostPlan] = []
        problems: list[Problem] = []
        for target in self.targets:
            try:
                own.append(self._own(requirements, target))
            except UnresolvableError as error:
                problems += self._explainer.problems(error, requirements, (target,))
        shared: tuple[HostPlan, ...] | None = None
        conflicts: list[Problem] = []
        if len(self.targets) == 1:
            shared = tuple(own) or None
        elif not problems:
            try:
                shared = self._for(requirements, self.targets)
            except UnresolvableError as error:
                conflicts += self._explainer.problems(error, requirements, self.targets)
        answers = (*own, *(shared or ()))
        self.reader.discard_others(wheel.file for each in answers for wheel in each.wheels)
        return Plan(
            hosts=tuple(each.name for each in self.targets),
            shared=shared,
            own=tuple(own),
            costs=() if shared is None else tuple(_costs(shared, own)),
            problems=tuple(problems),
            conflicts=tuple(conflicts),
        )

    def plan_host(self, texts: Sequence[str], host: str) -> HostPlan:
        """Return the newest wheels for one of the hosts.

        Raise ``UnplannableError`` if there is no solution, and the errors of ``plan``.
        """
        requirements = parse_requirements(texts)
        (target,) = (each for each in self.targets if each.name == host)
        try:
            return self._own(requirements, target)
        except UnresolvableError as error:
            problems = self._explainer.problems(error, requirements, (target,))
            raise UnplannableError(problems[0]) from None

    def fetch(self, wheel: PlannedWheel, folder: Path) -> Path:
        """Return the path of a planned wheel in ``folder``, downloaded and verified if it is not
        there. Raise ``WheelDownloadError`` on failure.
        """
        return self.reader.whole(wheel.file, folder)

    def _own(self, requirements: Sequence[Requirement], target: Target) -> HostPlan:
        (plan,) = self._for(requirements, (target,))
        return plan

    def _for(
        self, requirements: Sequence[Requirement], targets: Sequence[Target]
    ) -> tuple[HostPlan, ...]:
        wants = all_wants(requirements, targets)
        choices = resolve(wants, self.judge, self._releases, self._rejections)
        return tuple(
            HostPlan(host=each.name, wheels=tuple(self._wheels(choices, each.name)))
            for each in targets
        )

    def _wheels(self, choices: Iterable[Choice], host: str) -> Iterator[PlannedWheel]:
        for choice in choices:
            file = choice.files.get(host)
            if file is not None:
                yield PlannedWheel(
                    name=choice.name,
                    version=str(choice.version),
                    file=file,
                    lost=self.judge.judge(file, host).lost,
                    parents=choice.parents,
                    unused=tuple(self._unused(choice, host)),
                )

    def _unused(self, choice: Choice, host: str) -> Iterator[UnusedVariant]:
        for release in self._releases.of(choice.name):
            if release.version == choice.version:
                unused = self.judge.variants(release, host).unused
                chosen = choice.files[host].label
                yield from (each for each in unused if not each.is_certain and each.label != chosen)


def _costs(shared: Iterable[HostPlan], own: Iterable[HostPlan]) -> Iterator[Cost]:
    """Return where the version for all is older than the host's own, or lacks features of it."""
    by_host = {each.host: {wheel.name: wheel for wheel in each.wheels} for each in own}
    for plan in shared:
        for wheel in plan.wheels:
            newest = by_host[plan.host].get(wheel.name)
            if newest is None or newest.version == wheel.version:
                continue
            kept = {each.feature for each in newest.lost}
            features = tuple(each.feature or "" for each in wheel.lost if each.feature not in kept)
            yield Cost(
                host=plan.host,
                package=wheel.name,
                shared_version=wheel.version,
                own_version=newest.version,
                features=features,
            )
