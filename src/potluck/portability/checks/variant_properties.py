"""Which properties of variants (``wheels.variants``) a host has, and which of them come first.

PEP 825 leaves both to the providers of namespaces. Those of the wheelnext project are known here
(github.com/wheelnext): ``x86_64`` and ``aarch64`` (provider-variant-x86-64 and -aarch64),
``nvidia``, ``amd``, ``intel`` and ``ascend`` (NAME-variant-provider), ``blas_lapack`` and
``openmp``. For AMD only the architectures are known, and for Intel and Ascend only that a host has
nothing of the kind. Properties of other namespaces are not judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from potluck.portability.cuda.findings import host_cuda
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.x86_instructions import level_flags
from potluck.portability.wheels.variants import Variant

_X86_FEATURES = (
    *("avx_vnni", "cppc", "ibrs_enhanced", "tsc_adjust", "flush_l1d", "movdir64b", "movdiri"),
    *("avx512_bf16", "avx512_bitalg", "avx512_vbmi2", "avx512_vnni", "avx512_vp2intersect"),
    *("avx512_vpopcntdq", "avx512ifma", "avx512vbmi", "rdpid", "sha_ni", "vaes", "vpclmulqdq"),
    *("clwb", "clzero", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
    *("clflushopt", "gfni", "rdseed", "xsavec", "xsaveopt", "adx", "avx2", "avx", "bmi2"),
    *("bmi1", "abm", "f16c", "fma", "movbe", "xsave", "rdrand", "aes", "pclmulqdq", "sse4a"),
    *("fsgsbase", "sse4_2", "sse4_1", "ssse3", "sse3", "cx16", "lahf_lm", "popcnt", "sse2"),
    *("sse", "mmx"),
)
"""The features of CPUs that the provider knows, the preferred ones first."""

_ARM_FEATURES = (
    *("sve2", "flagm2", "frint", "sb", "btiecv", "paca", "pacg", "ssbs", "asimdfhm", "bf16"),
    *("dcpodp", "dgh", "dit", "flagm", "i8mm", "ilrcpc", "jscvt", "rng", "sha3", "sha512"),
    *("svebf16", "svei8mm", "uscat", "asimddp", "lrcpc", "asimdhp", "dcpop", "fcma", "fphp"),
    *("sve", "asimdrdm", "atomics", "aes", "asimd", "cpuid", "crc32", "evtstrm", "fp", "pmull"),
    *("sha1", "sha2"),
)

_FLAGS = {"dotprod": "asimddp", "fp16": "asimdhp", "lzcnt": "abm", "sse3": "pni"}
"""Names of CPU features that differ in ``/proc/cpuinfo``."""

_OTHER_FLAGS = frozenset({"btiecv"})
"""Names of a provider that Linux never reports."""

_LIBRARIES = {
    "amd": frozenset({"libhsa-runtime64.so.1"}),
    "ascend": frozenset({"libascend_hal.so", "libascendcl.so", "libdcmi.so"}),
    "intel": frozenset({"libze_loader.so.1"}),
}
"""Libraries of drivers; a provider finds no GPU without one of them."""

_AHEAD_OF_TIME = {
    "blas_lapack": ("accelerate", "openblas", "mkl"),
    "openmp": ("gnu", "intel", "llvm"),
}
"""Values that every host has, the preferred ones first: they only say how a wheel was built."""

_BUILD_FEATURES = ("provider", "library")
"""The providers call the feature ``provider``, the examples of PEP 825 ``library``."""

_VERSION = re.compile(r"\d{1,6}(\.\d{1,6})*")
_ARCHITECTURE = re.compile(r"(\d{1,4})(\d)[af]?_(real|virtual)")

Rank = tuple[float | str, ...]
"""A sort key: the lowest is preferred."""


def _by_name(feature: str, value: str) -> Rank:
    return (value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """The properties of a namespace on a host, as its provider sees them.

    ``has`` returns whether the host has a value of a feature; None if that is not known.
    ``features`` are the preferred ones, in order; others follow by name. ``rank`` returns the sort
    key of a value among those of its feature.
    """

    has: Callable[[str, str], bool | None]
    features: tuple[str, ...] = ()
    rank: Callable[[str, str], Rank] = _by_name


def host_namespaces(host: Host) -> Mapping[str, Namespace]:
    """Return the known namespaces by name, for one host."""
    return {
        "x86_64": _x86_64(host),
        "aarch64": _aarch64(host),
        "nvidia": _nvidia(host),
        "amd": _amd(host),
        "ascend": _absent_or_unknown(host, "ascend"),
        "intel": _absent_or_unknown(host, "intel"),
        **{name: _ahead_of_time(values) for name, values in _AHEAD_OF_TIME.items()},
    }


def has_any(namespace: Namespace | None, feature: str, values: Sequence[str]) -> bool | None:
    """Return whether the host has one of the values; None if that is not known."""
    if namespace is None:
        return None
    found = [namespace.has(feature, value) for value in values]
    if True in found:
        return True
    return None if None in found else False


def variant_rank(
    variant: Variant, order: Sequence[str], namespaces: Mapping[str, Namespace]
) -> tuple[Rank, ...]:
    """Return the sort key of a variant by which installers choose: the lowest is preferred.

    ``order`` are the release's namespaces, the most important first. The host must have the
    properties of the variant.
    """
    keys = [
        _property_rank(name, feature, values, order, namespaces[name])
        for name, features in variant.properties.items()
        for feature, values in features.items()
    ]
    # If one list is the beginning of another, the longer one is preferred.
    return (*sorted(keys), (math.inf,), (variant.label,))


def _property_rank(
    name: str, feature: str, values: Sequence[str], order: Sequence[str], namespace: Namespace
) -> Rank:
    best = min(namespace.rank(feature, each) for each in values if namespace.has(feature, each))
    return (*_position(name, order), *_position(feature, namespace.features), *best)


def _position(name: str, order: Sequence[str]) -> Rank:
    return (order.index(name) if name in order else len(order), name)


def _x86_64(host: Host) -> Namespace:
    def has(feature: str, value: str) -> bool | None:
        if host.machine != "x86_64":
            return False
        if feature == "level":
            flags = level_flags().get(f"x86-64-{value}")
            known = host.cpu_features
            return None if flags is None or known is None else flags <= known
        return _has_flag(host, feature, value)

    def rank(feature: str, value: str) -> Rank:
        levels = list(level_flags())
        return (-levels.index(f"x86-64-{value}"),) if feature == "level" else (value,)

    return Namespace(has=has, features=("level", *_X86_FEATURES), rank=rank)


def _aarch64(host: Host) -> Namespace:
    def has(feature: str, value: str) -> bool | None:
        return _has_flag(host, feature, value) if host.machine == "aarch64" else False

    return Namespace(has=has, features=("version", *_ARM_FEATURES))


def _has_flag(host: Host, feature: str, value: str) -> bool | None:
    """Return whether the CPU has a feature; None if it may have it under another name."""
    if host.cpu_features is None or value != "on":
        return None
    flag = _FLAGS.get(feature, feature)
    if flag in host.cpu_features:
        return True
    is_name_known = feature in _FLAGS or any(flag in flags for flags in level_flags().values())
    is_listed = feature in (*_X86_FEATURES, *_ARM_FEATURES) and feature not in _OTHER_FLAGS
    return False if is_name_known or is_listed or flag.startswith("avx") else None


def _nvidia(host: Host) -> Namespace:
    def has(feature: str, value: str) -> bool | None:
        has_none = host.is_complete and host.cuda_driver is None and host.tegra_release is None
        if feature == "sm_arch":
            return _runs_on_any(host, value) if host.gpus or has_none else None
        cuda = host_cuda(host)
        if not feature.startswith("cuda_version") or not _VERSION.fullmatch(value):
            return None
        if cuda is None:
            return False if has_none else None
        bound = tuple(map(int, value.split(".")))
        if feature == "cuda_version_lower_bound":
            return cuda >= bound
        return cuda < bound if feature == "cuda_version_upper_bound" else None

    def rank(feature: str, value: str) -> Rank:
        match = _ARCHITECTURE.fullmatch(value)
        if match is not None:
            return (match[3] == "virtual", -int(match[1]), -int(match[2]), value)
        return _newest_first(value)

    features = ("cuda_version_lower_bound", "cuda_version_upper_bound", "sm_arch")
    return Namespace(has=has, features=features, rank=rank)


def _newest_first(version: str) -> Rank:
    """Return the sort key of a version: 12.9 before 12.0, and that before 12."""
    return (*(-int(each) for each in version.split(".")), math.inf)


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


def _amd(host: Host) -> Namespace:
    def has(feature: str, value: str) -> bool | None:
        if host.amd_architectures:
            return value in host.amd_architectures if feature == "gfx_arch" else None
        return _lacks_all(host, "amd")

    return Namespace(has=has, features=("gfx_arch", "rocm_version"))


def _absent_or_unknown(host: Host, name: str) -> Namespace:
    def has(feature: str, value: str) -> bool | None:
        return _lacks_all(host, name)

    return Namespace(has=has)


def _lacks_all(host: Host, name: str) -> bool | None:
    """Return False if the host has no driver for a namespace, or else None: unknown."""
    known = host.other_libraries | {each.soname for each in host.libraries}
    return False if host.is_complete and not known & _LIBRARIES[name] else None


def _ahead_of_time(values: Sequence[str]) -> Namespace:
    def has(feature: str, value: str) -> bool | None:
        return True if feature in _BUILD_FEATURES and value in values else None

    def rank(feature: str, value: str) -> Rank:
        return (values.index(value),)

    return Namespace(has=has, features=_BUILD_FEATURES, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MissingProperties:
    """Properties of a variant, such as ``x86_64 :: level :: v4``, that a host does not have
    (``absent``), or may not have (``unknown``).
    """

    absent: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def missing_properties(variant: Variant, namespaces: Mapping[str, Namespace]) -> _MissingProperties:
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
    return _MissingProperties(absent=tuple(absent), unknown=tuple(unknown))


def variant_findings(variant: Variant | None, host: Host) -> Iterator[Finding]:
    """Yield why installers do not choose the variant on ``host``, or what cannot be judged. Nothing
    for wheels that are not variants.
    """
    if variant is None:
        return
    missing = missing_properties(variant, host_namespaces(host))
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
