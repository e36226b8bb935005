"""Explain the dynamic linker's decisions to users: findings, each with a way to fix it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.linking.link import Link, MissingLibrary, MissingSymbol, MissingVersion
from potluck.portability.linking.opened_libraries import (
    kind_of,
    known_providers,
    provider_of,
)
from potluck.portability.linking.promises import systems_with
from potluck.types.quantities import format_few

OPENED_BEFORE = "opened-before"
"""The linker refuses the file unless its package opens another of its files first."""
FROM_REQUIREMENT = "from-requirement"
"""The linker refuses the file unless a required wheel provides a library."""

_MAX_SYMBOLS = 20
"""Limit of findings about missing symbols per file; the others are counted."""
_MAX_NAMED_SYMBOLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContext:
    """``required`` are the distributions that the wheel requires on this host; ``label`` is the
    name of what is checked, such as ``warp-lang``. ``is_tegra``: the host is a Jetson.
    """

    host: Host
    required: tuple[str, ...]
    label: str
    is_tegra: bool = False


def link_findings(link: Link, context: LinkContext) -> tuple[Finding, ...]:
    """Return one for each missing library, version and symbol, in that order."""
    return (
        *_libraries(link, context),
        *(_version(each, context) for each in link.missing_versions),
        *_symbols(link, context),
    )


def _libraries(link: Link, context: LinkContext) -> Iterator[Finding]:
    for each in link.missing_libraries:
        name = ""
        if not each.path_in_tree:
            name = provider_of(each.library, each.sought, context.required)
        yield _library(each, name, context)


def _library(missing: MissingLibrary, required: str, context: LinkContext) -> Finding:
    library, host = missing.library, context.host
    code, severity, fix = "missing-library", Severity.FATAL, ""
    message = f"it needs {library}, which {host.name} does not have"
    if missing.path_in_tree:
        code, severity = OPENED_BEFORE, Severity.LIKELY
        message = (
            f"it needs {library}, which is not in the linker's search path"
            f" ({missing.path_in_tree}): the package has to open it first"
        )
    elif required:
        code, severity = FROM_REQUIREMENT, Severity.LIKELY
        message = f"it needs {library}, which {required} should provide"
        fix = f"also install {required}, as pip does without --no-deps"
    elif library.startswith(("libc.musl-", "ld-musl-")) or library == "libc.so":
        code = "other-c-library"
        message = f"it was built for musl, but {host.name} has glibc"
        fix = "use the manylinux wheel"
    elif not host.is_complete:
        severity = Severity.LIKELY
        message = f"it needs {library}, which {host.name} does not guarantee"
    else:
        fix = f"install the package of {host.name} that provides {library}"
        if kind := kind_of(library):
            fix = kind.fix_on(is_tegra=context.is_tegra)
        elif providers := known_providers(library):
            fix = f"install {' or '.join(providers)} from PyPI, which contains it"
    return Finding(
        code=code,
        severity=severity,
        message=message,
        file=missing.needed_by,
        library=library,
        fix=fix,
    )


def _version(missing: MissingVersion, context: LinkContext) -> Finding:
    symbols = f" ({format_few(missing.symbols, _MAX_NAMED_SYMBOLS)})" if missing.symbols else ""
    return Finding(
        code="missing-version",
        severity=Severity.FATAL,
        message=(
            f"it needs {missing.version} of {missing.library}{symbols},"
            f" {_instead(missing, context.host)}"
        ),
        file=missing.needed_by,
        library=missing.library,
        symbol=f"{missing.symbols[0]}@{missing.version}" if missing.symbols else missing.version,
        fix=_newer(missing.version, context),
    )


def _instead(missing: MissingVersion, host: Host) -> str:
    """Return what exists instead: the newest version with the same prefix, if it is the host's
    library.
    """
    if not missing.is_loaded:
        return "but does not list that library as needed: the linker aborts"
    if missing.path_in_tree:
        return f"but {missing.path_in_tree} does not define it"
    defined = next(
        (each.versions for each in host.libraries if each.soname == missing.library), frozenset()
    )
    newest = _newest(defined, missing.version.rpartition("_")[0] + "_")
    if newest and _numbers(newest) < _numbers(missing.version):
        return f"but {host.name} has at most {newest}"
    return f"but {host.name} does not define it"


@functools.lru_cache(maxsize=1024)  # many hosts have the same libraries
def _newest(versions: frozenset[str], prefix: str) -> str:
    """Return the newest version that begins with a prefix; empty if none does."""
    return max((each for each in versions if each.startswith(prefix)), key=_numbers, default="")


@functools.lru_cache(maxsize=1024)
def _numbers(version: str) -> tuple[int, ...]:
    parts = version.rpartition("_")[2].split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def _newer(version: str, context: LinkContext) -> str:
    """Return how to fix a missing version: a newer system, an older release, or a local build."""
    own = f"an older release of {context.label}, or one built from source there"
    if version.startswith("GLIBC_") and (numbers := _numbers(version))[:1] == (2,):
        systems = systems_with((numbers[0], numbers[1]))
        if systems:
            return f"a newer system or base image ({', '.join(systems)}), {own}"
    if version.startswith(("GLIBCXX_", "CXXABI_", "GCC_")):
        return f"a newer libstdc++ and libgcc (conda's libstdcxx-ng, a newer system), {own}"
    return own


def _symbols(link: Link, context: LinkContext) -> Iterator[Finding]:
    by_file: dict[str, list[MissingSymbol]] = {}
    for each in link.missing_symbols:
        by_file.setdefault(each.needed_by, []).append(each)
    for file, missing in by_file.items():
        elsewhere = [each for each in missing if each.path_in_tree]
        nowhere = [each for each in missing if not each.path_in_tree]
        if elsewhere:
            paths = ", ".join(dict.fromkeys(each.path_in_tree for each in elsewhere))
            names = [each.symbol.name for each in elsewhere]
            yield Finding(
                code=OPENED_BEFORE,
                severity=Severity.LIKELY,
                message=(
                    f"it requires {format_few(names, _MAX_NAMED_SYMBOLS)} of {paths}, which it"
                    " does not list as needed: the package has to open that first, with"
                    " RTLD_GLOBAL"
                ),
                file=file,
                symbol=_spelled(elsewhere[0]),
            )
        for number, each in enumerate(nowhere[:_MAX_SYMBOLS], start=1):
            num_others = len(nowhere) - number if number == _MAX_SYMBOLS else 0
            yield _symbol(each, num_others, context)


def _symbol(missing: MissingSymbol, num_others: int, context: LinkContext) -> Finding:
    also = f" (and {num_others} other symbols)" if num_others > 0 else ""
    of = f" of {missing.symbol.library}" if missing.symbol.library else ""
    return Finding(
        code="missing-symbol",
        severity=Severity.FATAL,
        message=(
            f"it requires {_spelled(missing)}{of}{also}, which no library that it loads on"
            f" {context.host.name} defines"
        ),
        file=missing.needed_by,
        library=missing.symbol.library,
        symbol=_spelled(missing),
        fix=f"another release of {context.label}, or one built from source there",
    )


def _spelled(missing: MissingSymbol) -> str:
    symbol = missing.symbol
    return f"{symbol.name}@{symbol.version}" if symbol.version else symbol.name
