"""What the dynamic linker's decisions mean to somebody: findings, each with a way out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from potluck.portability.finding import Finding, Severity
from potluck.portability.host import Host
from potluck.portability.link import Link, MissingLibrary, MissingSymbol, MissingVersion
from potluck.portability.opened_libraries import kind_of, library_kinds
from potluck.portability.policies import systems_with
from potluck.portability.requirements import bringer
from potluck.quantities import format_few

OPENED_BEFORE = "opened-before"
"""The linker refuses the file, unless its package opens another of its files first."""
FROM_REQUIREMENT = "from-requirement"
"""The linker refuses the file, unless a wheel that is required brings a library."""

_MAX_SYMBOLS = 20
"""Findings for the symbols that one file lacks; the others are counted."""
_MAX_NAMED_SYMBOLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContext:
    """``required`` are the distributions that the wheel requires on this host; ``label`` is what
    is checked, as ``warp-lang``.
    """

    host: Host
    required: tuple[str, ...]
    label: str


def link_findings(link: Link, context: LinkContext) -> tuple[Finding, ...]:
    """One for each missing library, version and symbol, in that order."""
    return (
        *_libraries(link, context),
        *(_version(each, context) for each in link.missing_versions),
        *_symbols(link, context),
    )


def _libraries(link: Link, context: LinkContext) -> Iterator[Finding]:
    brought = {
        each: bringer(each.library, each.sought, context.required)
        for each in link.missing_libraries
        if not each.path_in_tree
    }
    # Who leaves one library to another wheel leaves it those that are named otherwise, too.
    companions = {each.needed_by: name for each, name in brought.items() if name}
    for each in link.missing_libraries:
        name = brought.get(each) or companions.get(each.needed_by, "")
        yield _library(each, name, context)


def _library(missing: MissingLibrary, required: str, context: LinkContext) -> Finding:
    library, host = missing.library, context.host
    code, severity, way_out = "missing-library", Severity.FATAL, ""
    message = f"it needs {library}, which {host.name} does not have"
    if missing.path_in_tree:
        code, severity = OPENED_BEFORE, Severity.LIKELY
        message = (
            f"it needs {library}, and the linker does not look where that is"
            f" ({missing.path_in_tree}): the package has to open it first"
        )
    elif required:
        code, severity = FROM_REQUIREMENT, Severity.LIKELY
        message = f"it needs {library}, which {required} should bring"
        way_out = f"install {required} with it, as pip does without --no-deps"
    elif library.startswith(("libc.musl-", "ld-musl-")) or library == "libc.so":
        code = "other-c-library"
        message = f"it was built for musl, and {host.name} has glibc"
        way_out = "take the manylinux wheel"
    elif not host.is_complete:
        severity = Severity.LIKELY
        message = f"it needs {library}, which {host.name} does not promise"
    else:
        kind = library_kinds().get(kind_of(library))
        way_out = kind.way_out if kind else f"install the package of {host.name} that has {library}"
    return Finding(
        code=code,
        severity=severity,
        message=message,
        file=missing.needed_by,
        library=library,
        way_out=way_out,
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
        way_out=_newer(missing.version, context),
    )


def _instead(missing: MissingVersion, host: Host) -> str:
    """What there is: the newest version with the same prefix, where it is the host's library."""
    if not missing.is_loaded:
        return "and does not need that library itself: the linker gives up"
    if missing.path_in_tree:
        return f"and {missing.path_in_tree} does not define it"
    defined = next(
        (each.versions for each in host.libraries if each.soname == missing.library), frozenset()
    )
    newest = _newest(defined, missing.version.rpartition("_")[0] + "_")
    if newest and _numbers(newest) < _numbers(missing.version):
        return f"and {host.name} has {newest} at most"
    return f"and {host.name} does not define it"


@functools.lru_cache(maxsize=1024)  # whole fleets ask it of the same libraries
def _newest(versions: frozenset[str], prefix: str) -> str:
    """The newest version that begins with a prefix; empty if none does."""
    return max((each for each in versions if each.startswith(prefix)), key=_numbers, default="")


@functools.lru_cache(maxsize=1024)
def _numbers(version: str) -> tuple[int, ...]:
    parts = version.rpartition("_")[2].split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def _newer(version: str, context: LinkContext) -> str:
    """A way out of a version that is not there: newer systems, older releases, one's own build."""
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
                    f"it wants {format_few(names, _MAX_NAMED_SYMBOLS)} of {paths}, which"
                    " it does not need by name: the package has to open that first, for all"
                ),
                file=file,
                symbol=_spelled(elsewhere[0]),
            )
        for number, each in enumerate(nowhere[:_MAX_SYMBOLS], start=1):
            num_others = len(nowhere) - number if number == _MAX_SYMBOLS else 0
            yield _symbol(each, num_others, context)


def _symbol(missing: MissingSymbol, num_others: int, context: LinkContext) -> Finding:
    also = f" (nor {num_others} other symbols)" if num_others > 0 else ""
    of = f" of {missing.symbol.library}" if missing.symbol.library else ""
    return Finding(
        code="missing-symbol",
        severity=Severity.FATAL,
        message=(
            f"it wants {_spelled(missing)}{of}, which nothing on {context.host.name} that it"
            f" loads defines{also}"
        ),
        file=missing.needed_by,
        library=missing.symbol.library,
        symbol=_spelled(missing),
        way_out=f"another release of {context.label}, or one built from source there",
    )


def _spelled(missing: MissingSymbol) -> str:
    symbol = missing.symbol
    return f"{symbol.name}@{symbol.version}" if symbol.version else symbol.name
