"""Whether a host has the properties of a variant of a wheel (``checks.variant_properties``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from potluck.portability.checks.variant_properties import Namespace, has_any, host_namespaces
from potluck.portability.cuda.table import CudaTable
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.wheels.variants import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingProperties:
    """Properties of a variant, such as ``x86_64 :: level :: v4``, that a host does not have
    (``absent``), or may not have (``unknown``).
    """

    absent: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def missing_properties(variant: Variant, namespaces: Mapping[str, Namespace]) -> MissingProperties:
    """Return what prevents installers from choosing a variant on a host with these namespaces."""
    absent = []
    unknown = []
    for name, features in variant.properties.items():
        for feature, values in features.items():
            wanted = f"{name} :: {feature} :: {' or '.join(values)}"
            has = has_any(namespaces.get(name), feature, values)
            if has is None:
                unknown.append(wanted)
            elif not has:
                absent.append(wanted)
    return MissingProperties(absent=tuple(absent), unknown=tuple(unknown))


def variant_findings(variant: Variant, host: Host, table: CudaTable) -> Iterator[Finding]:
    """Yield why installers do not choose the variant on ``host``, or what cannot be judged."""
    missing = missing_properties(variant, host_namespaces(host, table))
    for wanted in missing.absent:
        yield Finding(
            code="other-variant",
            severity=Severity.FATAL,
            message=f"installers do not choose the variant {variant.label}: it needs "
            f"{wanted}, which {host.name} does not have",
            fix="use another variant of the release, such as null, or none",
        )
    if missing.unknown:
        yield Finding(
            code="variant-not-judged",
            severity=Severity.NOTE,
            message=f"it is not known whether {host.name} has what the variant {variant.label} "
            f"needs: {', '.join(missing.unknown)}",
        )
