"""Summarize in one reason why installers accept none of a release's wheels on a host.

A release has wheels for many platforms and Pythons. Those for other machines are ignored; among
those for this machine, the Python version is considered first and the C library last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from potluck.portability.planning.index import Incompatibility, IndexFile, Release
from potluck.portability.planning.release_variants import UnusedVariant
from potluck.portability.planning.target import Target
from potluck.portability.wheels.tags import host_platforms, policy_glibc
from potluck.types.quantities import format_few

_SHOWN_LABELS = 6
_SHOWN_REASONS = 3
"""In a message; more are counted."""

PYTHON_KINDS = frozenset({"python-required", "python-tag"})
"""Reasons that another Python on the host would resolve."""


def release_refusal(
    release: Release, target: Target, unused: Sequence[UnusedVariant] = ()
) -> Incompatibility:
    """Return why none of a release's wheels can be installed on a target.

    ``unused`` says why no variant is chosen; it is empty if variants are not considered.
    """
    if unused:
        return Incompatibility(kind="variants", message=_unused_message(unused))
    labels = sorted({each.label for each in release.variants if target.accepts(each)})
    if labels:
        return Incompatibility(
            kind="variants",
            message=f"only variants of the wheel fit the host ({format_few(labels, _SHOWN_LABELS)})"
            ", which pip ignores; try --variants",
        )
    wheels = (*release.wheels, *release.variants)
    if not wheels:
        return Incompatibility(kind="no-wheel", message="there are no wheels, only source packages")
    machine = target.host.machine
    linux = [each for each in wheels if _is_for(each, machine)]
    if not linux:
        return Incompatibility(
            kind="no-machine", message=f"there are no wheels for Linux on {machine}"
        )
    fitting = [each for each in linux if _supports_libc(each, target)]
    if not fitting:
        return _libc_refusal(linux, target)
    refused = {each.requires_python for each in fitting if each.requires_python}
    if len(refused) == 1 and all("requires Python" in target.refusal(each) for each in fitting):
        return Incompatibility(
            kind="python-required",
            message=f"the wheels require Python {refused.pop()}, "
            f"but the host has {target.python.version_text}",
        )
    pythons = sorted({tag for each in fitting for tag in _python_tags(each)}, key=_sortable)
    return Incompatibility(
        kind="python-tag",
        message=f"the wheels are for {', '.join(pythons)}, "
        f"but the host has CPython {target.python.name}",
    )


def _unused_message(unused: Sequence[UnusedVariant]) -> str:
    reasons: dict[str, list[str]] = {}
    for each in unused:
        reasons.setdefault(each.reason, []).append(each.label)
    texts = [f"{', '.join(labels)} ({reason})" for reason, labels in reasons.items()]
    return f"no variant of the wheel fits: {format_few(texts, _SHOWN_REASONS)}"


def _libc_refusal(files: Sequence[IndexFile], target: Target) -> Incompatibility:
    host = target.host
    there = host.libc_text
    names = [tag.rpartition("-")[2] for each in files for tag in each.tags]
    if host.libc == "glibc":
        wanted = [glibc for each in names if (glibc := policy_glibc(each)) is not None]
        if wanted:
            least = ".".join(map(str, min(wanted)))
            return Incompatibility(
                kind="glibc", message=f"the wheels require glibc {least}, but the host has {there}"
            )
        return Incompatibility(
            kind="libc", message=f"the wheels are for musl, but the host has {there}"
        )
    if any(each.startswith("musllinux") for each in names):
        return Incompatibility(
            kind="musl", message=f"the wheels require a newer musl, but the host has {there}"
        )
    return Incompatibility(
        kind="libc", message=f"the wheels are for glibc, but the host has {there}"
    )


def _is_for(file: IndexFile, machine: str) -> bool:
    return any(
        platform == "any" or ("linux" in platform and platform.endswith(f"_{machine}"))
        for platform in (tag.rpartition("-")[2] for tag in file.tags)
    )


def _supports_libc(file: IndexFile, target: Target) -> bool:
    host = target.host
    known = host_platforms(host.machine, host.libc, host.libc_version)
    return any(tag.rpartition("-")[2] in known for tag in file.tags)


def _python_tags(file: IndexFile) -> Iterable[str]:
    return {"-".join(tag.split("-")[:2]) for tag in file.tags}


def _sortable(tag: str) -> tuple[int, str]:
    """Return a sort key that orders ``cp39-cp39`` before ``cp310-cp310``."""
    return len(tag.partition("-")[0]), tag
