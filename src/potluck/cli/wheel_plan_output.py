"""The output of ``potluck wheel plan``: the JSON document, and text for users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import potluck
from potluck.cli.cluster_hosts import SilentNode
from potluck.cli.tables import table
from potluck.portability.planning.index import parse_filename
from potluck.portability.planning.plan import Cost, HostPlan, Plan, PlannedWheel, Problem
from potluck.portability.planning.release_variants import UnusedVariant
from potluck.portability.planning.target import Target
from potluck.quantities import format_few

_SHOWN_HOSTS = 3
"""In a row of the table; more are counted."""


def plan_document(
    plan: Plan,
    targets: Sequence[Target],
    requirements: Sequence[str],
    silent: Sequence[SilentNode],
    looked_up: Sequence[str],
) -> dict[str, Any]:
    """Return the document of ``potluck wheel plan --json`` (schema ``potluck.wheel-plan/1``)."""
    return {
        "schema": "potluck.wheel-plan/1",
        "version": potluck.__version__,
        "requirements": list(requirements),
        "hosts": [_host(each) for each in targets],
        "silent": [{"node_id": each.node_id, "problem": each.problem} for each in silent],
        "shared": None if plan.shared is None else [_host_plan(each) for each in plan.shared],
        "own": [_host_plan(each) for each in plan.own],
        "costs": [_cost(each) for each in plan.costs],
        "problems": [_problem(each) for each in plan.problems],
        "conflicts": [_problem(each) for each in plan.conflicts],
        "looked_up": list(looked_up),
    }


def _host(target: Target) -> dict[str, Any]:
    host = target.host
    return {
        "name": host.name,
        "origin": host.origin,
        "machine": host.machine,
        "libc": f"{host.libc} {host.libc_version[0]}.{host.libc_version[1]}",
        "python": target.python.name,
        "is_complete": host.is_complete,
    }


def _host_plan(plan: HostPlan) -> dict[str, Any]:
    return {"host": plan.host, "wheels": [_wheel(each) for each in plan.wheels]}


def _wheel(wheel: PlannedWheel) -> dict[str, Any]:
    return {
        "name": wheel.name,
        "version": wheel.version,
        "file": wheel.file.filename,
        "variant": wheel.label or None,
        "url": wheel.file.url,
        "sha256": wheel.file.sha256 or None,
        "needed_by": list(wheel.parents),
        "lost": [
            {
                "feature": each.feature or None,
                "message": each.message,
                "fix": each.fix or None,
            }
            for each in wheel.lost
        ],
        "unused_variants": [{"label": each.label, "reason": each.reason} for each in wheel.unused],
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "host": cost.host,
        "package": cost.package,
        "shared_version": cost.shared_version,
        "own_version": cost.own_version,
        "features": list(cost.features),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "package": problem.package,
        "hosts": list(problem.hosts),
        "wanted": list(problem.wanted),
        "reasons": [
            {"message": each.message, "versions": list(each.versions)} for each in problem.reasons
        ],
        "nearest": [
            {"kind": each.kind, "message": each.message, "version": each.version or None}
            for each in problem.nearest
        ],
    }


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
        yield f"one version of each package for {'all ' * (count > 1)}{_hosts(count)}:"
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


def _hosts(count: int) -> str:
    return f"{count} host{'s' * (count != 1)}"


def _table(plans: Sequence[HostPlan]) -> Iterator[str]:
    """A row for each package and wheel, with the hosts that it is for; then what is lost, and
    which variants are not used.
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
    parsed = parse_filename(wheel.file.filename)
    name = wheel.file.filename.removesuffix(".whl")
    if parsed is None:
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
