"""The output of ``potluck wheel plan``: the JSON document, and text for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import potluck
from potluck.cli.tables import table
from potluck.cli.wheel_document import CheckedHost
from potluck.cli.wheel_hosts import SilentNode
from potluck.portability.planning.judge import LostFeature
from potluck.portability.planning.plan import Cost, HostPlan, Plan, PlannedWheel, Problem
from potluck.portability.planning.release_variants import UnusedVariant
from potluck.portability.planning.target import Target
from potluck.types.document import Document, document_of
from potluck.types.quantities import format_count, format_few

_SHOWN_HOSTS = 3
"""In a row of the table; more are counted."""


class PlannedHost(CheckedHost, frozen=True, kw_only=True):
    """A host for which versions are planned."""

    python: str
    """The Python version that wheels are installed for: ``3.12``, ``3.13t``."""
    is_complete: bool
    """False if the host may have more libraries than are described."""


class UnusedVariantDocument(Document, frozen=True, kw_only=True):
    """A variant whose metadata is invalid, or whose properties the host may or may not have."""

    label: str
    reason: str


class PlannedWheelDocument(Document, frozen=True, kw_only=True):
    """A wheel to install on a host."""

    name: str
    version: str
    file: str
    """Name of the wheel that installers choose."""
    variant: str | None
    """Label of the wheel's variant (PEP 825); null if it is not a variant."""
    url: str
    sha256: str | None
    """As published by the index; null if it is not."""
    needed_by: tuple[str, ...]
    """The packages that require it; empty if only the user does."""
    lost: tuple[LostFeature, ...]
    """The features that will not work there."""
    unused_variants: tuple[UnusedVariantDocument, ...]
    """Variants of the release that are not chosen, although the host may have their properties."""


class HostPlanDocument(Document, frozen=True, kw_only=True):
    """All wheels to install on a host, by name."""

    host: str
    wheels: tuple[PlannedWheelDocument, ...]


class WheelPlanDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck wheel plan --json``."""

    schema: Literal["potluck.wheel-plan/1"] = "potluck.wheel-plan/1"
    version: str
    """The version of Potluck."""
    requirements: tuple[str, ...]
    hosts: tuple[PlannedHost, ...]
    silent: tuple[SilentNode, ...]
    """With ``--cluster``: the nodes that did not describe their hosts."""
    shared: tuple[HostPlanDocument, ...] | None
    """One version of each package for all hosts; null if there is none."""
    own: tuple[HostPlanDocument, ...]
    """The newest versions for each host for which there is a solution."""
    costs: tuple[Cost, ...]
    problems: tuple[Problem, ...]
    """Why there is no solution for a host."""
    conflicts: tuple[Problem, ...]
    """Why no single version works on all hosts."""
    looked_up: tuple[str, ...]
    """The projects that the index was asked for."""


def plan_document(
    plan: Plan,
    targets: Iterable[Target],
    requirements: Iterable[str],
    silent: Iterable[SilentNode],
    looked_up: Iterable[str],
) -> WheelPlanDocument:
    """Return the document of ``potluck wheel plan --json``."""
    return document_of(
        WheelPlanDocument,
        plan,
        version=potluck.__version__,
        requirements=tuple(requirements),
        hosts=tuple(
            document_of(PlannedHost, each.host, libc=each.host.libc_text, python=each.python.name)
            for each in targets
        ),
        silent=tuple(silent),
        shared=None if plan.shared is None else tuple(map(_host_plan, plan.shared)),
        own=tuple(map(_host_plan, plan.own)),
        looked_up=tuple(looked_up),
    )


def _host_plan(plan: HostPlan) -> HostPlanDocument:
    return HostPlanDocument(host=plan.host, wheels=tuple(map(_wheel, plan.wheels)))


def _wheel(wheel: PlannedWheel) -> PlannedWheelDocument:
    return document_of(
        PlannedWheelDocument,
        wheel,
        file=wheel.file.filename,
        variant=wheel.label or None,
        url=wheel.file.url,
        sha256=wheel.file.sha256 or None,
        needed_by=wheel.parents,
        unused_variants=tuple(document_of(UnusedVariantDocument, each) for each in wheel.unused),
    )


def plan_lines(plan: Plan, targets: Sequence[Target]) -> Iterator[str]:
    """Yield the answers that there are, and what stands in the way of the others."""
    for target in targets:
        if not target.host.is_complete:
            yield (
                f"{target.name} is not fully described: assuming that whatever is not "
                "described is present"
            )
    count = len(plan.hosts)
    if plan.shared is not None:
        hosts = format_count(count, "host")
        yield f"one version of each package for {'all ' * (count > 1)}{hosts}:"
        yield from _table(plan.shared)
    if plan.costs:
        yield "what that costs, compared with the newest for each host:"
        yield from (f"  {_cost_text(each)}" for each in plan.costs)
    for conflict in plan.conflicts:
        yield from _problem_lines(conflict, "no single set of versions works on all hosts")
    if plan.own and (plan.shared is None or plan.costs):
        yield "the newest for each host:"
        yield from _table(plan.own)
    for problem in plan.problems:
        yield from _problem_lines(problem, "nothing fits")


def _table(plans: Sequence[HostPlan]) -> Iterator[str]:
    """Yield a row for each package and wheel, with its hosts; then what is lost, and which variants
    are not used.
    """
    rows = [("PACKAGE", "VERSION", "HOSTS", "WHEEL", "WITHOUT")]
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    losses: dict[str, None] = {}
    for plan in plans:
        for wheel in plan.wheels:
            without = ", ".join(each.feature or each.message for each in wheel.lost)
            key = wheel.name, wheel.version, _tags(wheel), without
            grouped.setdefault(key, []).append(plan.host)
            for each in wheel.lost:
                fix = f" (fix: {each.fix})" if each.fix else ""
                losses[f"{wheel.name} {wheel.version}: {each.message}{fix}"] = None
            for reason, labels in _by_reason(wheel.unused).items():
                unused = f"{_named_variants(labels)} not used: {reason}"
                losses[f"{wheel.name} {wheel.version} on {plan.host}: {unused}"] = None
    for (name, version, tags, without), hosts in sorted(grouped.items()):
        named = "all" if 1 < len(hosts) == len(plans) else format_few(hosts, _SHOWN_HOSTS)
        rows.append((name, version, named, tags, without))
    for line in (*table(rows), *losses):
        yield f"  {line}".rstrip()


def _by_reason(unused: Sequence[UnusedVariant]) -> Mapping[str, list[str]]:
    """Return the labels of variants by the reason why they are not used."""
    labels: dict[str, list[str]] = {}
    for each in unused:
        labels.setdefault(each.reason, []).append(each.label)
    return labels


def _named_variants(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"the variant {labels[0]} is"
    return f"the variants {', '.join(labels)} are"


def _tags(wheel: PlannedWheel) -> str:
    """Return the tags of a wheel, and the label if it is a variant."""
    name = wheel.file.filename.removesuffix(".whl")
    if not wheel.file.tags:
        return name
    return "-".join(name.split("-")[-4 if wheel.label else -3 :])


def _cost_text(cost: Cost) -> str:
    text = f"{cost.host}: {cost.package} {cost.shared_version} instead of {cost.own_version}"
    return f"{text}, without {', '.join(cost.features)}" if cost.features else text


def _problem_lines(problem: Problem, what: str) -> Iterator[str]:
    yield f"{what}: {problem.package} on {', '.join(problem.hosts)}"
    for wanted in problem.wanted:
        yield f"  required: {wanted}"
    for reason in problem.reasons:
        yield f"  {reason.message}"
    for nearest in problem.nearest:
        yield f"  nearest: {nearest.message}"
