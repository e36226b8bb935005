"""Whether a host has the properties of a variant of a wheel (``wheels.variants``).

PEP 825 leaves it to providers what a property means. Those of the wheelnext project are known here:
``x86_64``, ``aarch64`` and ``nvidia`` (github.com/wheelnext, cpu_level_provider and
nvidia-variant-provider). Properties of others are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from potluck.portability.cuda.findings import host_cuda
from potluck.portability.cuda.table import CudaTable
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.cpu_levels import level_flags
from potluck.portability.wheels.variants import Variant

_FLAGS = {"dotprod": "asimddp", "fp16": "asimdhp", "lzcnt": "abm", "sse3": "pni"}
"""Names of CPU features that differ in ``/proc/cpuinfo``."""

_VERSION = re.compile(r"\d{1,6}(\.\d{1,6})*")
_ARCHITECTURE = re.compile(r"(\d{1,4})(\d)[af]?_(real|virtual)")

_Judge = Callable[[str, str], "bool | None"]


def variant_findings(variant: Variant, host: Host, table: CudaTable) -> Iterator[Finding]:
    """Yield why installers do not choose the variant on ``host``, or what cannot be judged."""
    judges = _judges(host, table)
    unknown = []
    for namespace, features in variant.properties.items():
        for feature, values in features.items():
            wanted = f"{namespace} :: {feature} :: {' or '.join(values)}"
            has = _has_any(judges.get(namespace), feature, values)
            if has is None:
                unknown.append(wanted)
            elif not has:
                yield Finding(
                    code="other-variant",
                    severity=Severity.FATAL,
                    message=f"installers do not choose the variant {variant.label}: it needs "
                    f"{wanted}, which {host.name} does not have",
                    fix="use another variant of the release, such as null, or none",
                )
    if unknown:
        yield Finding(
            code="variant-not-judged",
            severity=Severity.NOTE,
            message=f"it is not known whether {host.name} has what the variant {variant.label} "
            f"needs: {', '.join(unknown)}",
        )


def _has_any(judge: _Judge | None, feature: str, values: Sequence[str]) -> bool | None:
    """Return whether the host has one of the values; None if that is not known."""
    if judge is None:
        return None
    found = [judge(feature, value) for value in values]
    if True in found:
        return True
    return None if None in found else False


def _judges(host: Host, table: CudaTable) -> Mapping[str, _Judge]:
    def x86_64(feature: str, value: str) -> bool | None:
        if host.machine != "x86_64":
            return False
        if feature == "level":
            flags = level_flags().get(f"x86-64-{value}")
            known = host.cpu_features
            return None if flags is None or known is None else flags <= known
        return _has_flag(host, feature, value)

    def aarch64(feature: str, value: str) -> bool | None:
        return _has_flag(host, feature, value) if host.machine == "aarch64" else False

    def nvidia(feature: str, value: str) -> bool | None:
        has_none = host.is_complete and host.cuda_driver is None and host.tegra_release is None
        if feature == "sm_arch":
            return _runs_on_any(host, value) if host.gpus or has_none else None
        cuda = host_cuda(host, table)
        if not feature.startswith("cuda_version") or not _VERSION.fullmatch(value):
            return None
        if cuda is None:
            return False if has_none else None
        bound = tuple(map(int, value.split(".")))
        if feature == "cuda_version_lower_bound":
            return cuda >= bound
        return cuda < bound if feature == "cuda_version_upper_bound" else None

    return {"x86_64": x86_64, "aarch64": aarch64, "nvidia": nvidia}


def _has_flag(host: Host, feature: str, value: str) -> bool | None:
    """Return whether the CPU has a feature; None if it may have it under another name."""
    if host.cpu_features is None or value != "on":
        return None
    flag = _FLAGS.get(feature, feature)
    if flag in host.cpu_features:
        return True
    is_name_known = any(flag in flags for flags in level_flags().values())
    return False if is_name_known or feature in _FLAGS or flag.startswith("avx") else None


def _runs_on_any(host: Host, value: str) -> bool | None:
    """Return whether code for an architecture such as ``90_real`` runs on a GPU of the host.

    Machine code runs on the same major version from its minor version on, and intermediate code
    (``virtual``) on every later architecture.
    """
    match = _ARCHITECTURE.fullmatch(value)
    if match is None:
        return None
    built = (int(match[1]), int(match[2]))
    for gpu in host.gpus:
        has = gpu.compute_capability
        if has is not None and has >= built and (match[3] == "virtual" or has[0] == built[0]):
            return True
    return None if any(gpu.compute_capability is None for gpu in host.gpus) else False
