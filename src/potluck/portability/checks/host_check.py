"""Check wheels on one host: tags, dynamic linking and feature rules, file by file."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from potluck.portability.checks.needs import ObjectNeeds
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import FileReport, HostReport, WheelReport
from potluck.portability.checks.variant_properties import variant_findings
from potluck.portability.cuda.findings import cuda_findings, is_tegra
from potluck.portability.features.findings import feature_findings
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.instructions.cpu_needs import (
    ILLEGAL_INSTRUCTION,
    code_findings,
    cpu_findings,
)
from potluck.portability.linking.findings import (
    ALLOCATOR_PAGE_SIZE,
    LinkContext,
    allocator_findings,
    broken_finding,
    link_findings,
    mapping_findings,
    other_c_library_finding,
    other_machine_finding,
)
from potluck.portability.linking.link import Link, Linker
from potluck.portability.linking.opened_libraries import opened_library_findings
from potluck.portability.wheels.misnamed_files import misnamed_finding
from potluck.portability.wheels.tags import install_finding

_ARCHITECTURES = {"i686": "i386", "armv7l": "arm", "ppc64le": "powerpc64le"}
"""Names in these suffixes that differ from those of ``uname -m`` (Debian's multiarch tuples)."""


def weighed_by_imports(
    reports: tuple[FileReport, ...], wheel: PreparedWheel, host: Host
) -> tuple[FileReport, ...]:
    """Return the reports with fatal findings downgraded to limits for files that importing the
    wheel does not load, or need not load because another file of the same module loads, and to
    notes for files of other versions of Python.

    They stay fatal if it is unknown which files are loaded by imports.

    A file that would be refused, but that importing the wheel does not load, is a limit of the
    wheel.
    """
    if wheel.needs.imported is None:
        return reports
    by_path = {each.path: each for each in reports}
    explained: dict[str, str] = {}
    required: set[str] = set()
    for paths in wheel.needs.imported:
        chosen = file_of_module(paths, host)
        loading = [path for path in paths if _loads(by_path.get(path))]
        if chosen is not None:
            required.add(chosen)
        elif loading:
            instead = f"importing {wheel.label} can load {posixpath.basename(loading[0])} instead"
            explained |= dict.fromkeys(paths, instead)
        else:
            required |= set(paths)
            any_of = f"any one of the {len(paths)} files of this module is enough"
            explained |= dict.fromkeys(paths, any_of)
    unused = f"importing {wheel.label} does not load the file"
    weighed = []
    for each in reports:
        if each.path in required:
            text, severity = explained.get(each.path, ""), Severity.FATAL
        elif is_for_other_python(each.path, host):
            text, severity = "the file is for another version of Python", Severity.NOTE
        else:
            text, severity = explained.get(each.path, unused), Severity.LIMIT
        weighed.append(_explained(each, text, severity, wheel))
    return tuple(weighed)


def _loads(report: FileReport | None) -> bool:
    """Return whether a file is for the host's machine and has no fatal findings."""
    if report is None or report.opens_alone is None:
        return False
    return report.verdict is not Verdict.WILL_NOT_LOAD


def _explained(
    report: FileReport, text: str, severity: Severity, wheel: PreparedWheel
) -> FileReport:
    """Return the report whose fatal findings end with ``text`` and have ``severity``."""
    is_attempted = severity is Severity.LIMIT and report.path in wheel.needs.attempted
    return replace(
        report,
        findings=tuple(
            _explained_finding(each, text, severity)
            if each.severity is Severity.FATAL and not (is_attempted and _ends_process(each))
            else each
            for each in report.findings
        ),
    )


def _ends_process(finding: Finding) -> bool:
    """Return whether the process ends, which the importing module cannot tolerate."""
    return finding.code in (ALLOCATOR_PAGE_SIZE, ILLEGAL_INSTRUCTION)


def _explained_finding(finding: Finding, text: str, severity: Severity) -> Finding:
    feature = finding.feature
    if severity is Severity.LIMIT:
        feature = feature or posixpath.basename(finding.file)
    return replace(
        finding,
        severity=severity,
        message=f"{finding.message}; {text}" if text else finding.message,
        feature=feature,
        fix="" if severity is Severity.NOTE else finding.fix,
    )


def file_of_module(paths: Sequence[str], host: Host) -> str | None:
    """Return the file that the host's Python loads of those of one module; None if that is
    unknown, or if Python itself loads none of several.

    CPython's own loader only knows ``NAME.cpython-311-x86_64-linux-gnu.so``, ``NAME.abi3.so`` and
    ``NAME.so``, in this order (Python/dynload_shlib.c; ``importlib.machinery.EXTENSION_SUFFIXES``).
    Files with other names, such as ``MPI.mpich.cpython-311-x86_64-linux-gnu.so``, are loaded by
    code of the package, which may choose among them.
    """
    if len(paths) == 1:
        return paths[0]
    python = host.python
    if python is None or python.implementation != "cpython":
        return None
    for suffix in _suffixes(python, host.machine):
        for path in paths:
            if re.fullmatch(suffix, posixpath.basename(path).partition(".")[2]):
                return path
    return None


def is_for_other_python(path: str, host: Host) -> bool:
    """Return whether the name of an extension module says that it is for a CPython other than the
    host's.
    """
    suffix = posixpath.basename(path).partition(".")[2]
    python = host.python
    if python is None or not re.fullmatch(r"cpython-\d+\w*-[\w-]+\.so", suffix):
        return False
    is_cpython = python.implementation == "cpython"
    return not (is_cpython and re.fullmatch(next(_suffixes(python, host.machine)), suffix))


def _suffixes(python: HostPython, machine: str) -> Iterator[str]:
    """Yield patterns of what follows the module's name and a dot, in the order of precedence."""
    abi = python.name.replace(".", "")
    architecture = re.escape(_ARCHITECTURES.get(machine, machine))
    yield rf"cpython-{abi}m?-{architecture}-linux-\w+\.so"  # "m" up to Python 3.7
    if not python.is_free_threaded:
        yield r"abi3\.so"
    if python.version >= (3, 15):
        yield r"abi3t\.so"
    yield r"so"


class HostCheck:
    """Checks wheels on one host; one instance can check many."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._linker = Linker(host)
        self._is_tegra = is_tegra(host)

    def check(self, wheel: PreparedWheel) -> HostReport:
        """Return the report for a wheel on this host."""
        files = weighed_by_imports(tuple(self._files(wheel)), wheel, self.host)
        found = [finding for each in files for finding in each.findings]
        features: tuple[Finding, ...] = ()
        # Pure Python runs on every machine.
        is_meant = not wheel.machines or self.host.machine in wheel.machines
        if wheel.rules is not None and is_meant:
            features = feature_findings(wheel.rules, wheel.build, self.host, found)
        refusal = None
        if distribution := wheel.needs.distribution:
            refusal = install_finding(distribution, self.host)
            for each in variant_findings(distribution.variant, self.host):
                if each.severity is not Severity.FATAL:
                    features += (each,)
                elif refusal is None:
                    refusal = each
        return HostReport(
            host=self.host.name,
            origin=self.host.origin,
            machine=self.host.machine,
            refusal=refusal,
            files=files,
            features=features,
        )

    def _files(self, wheel: PreparedWheel) -> Iterator[FileReport]:
        linkable = {each.path: each for each in wheel.needs.objects if self._is_linkable(each)}
        links = self._links(wheel, linkable)
        refusals = {path: self._refusals(each) for path, each in linkable.items()}
        carriers = _carriers(links, refusals)
        context = LinkContext(
            host=self.host,
            required=wheel.required(self.host),
            label=wheel.label,
            is_tegra=self._is_tegra,
        )
        for each in wheel.needs.objects:
            if each.path not in links:
                yield self._foreign_file(each, wheel)
                continue
            link = links[each.path]
            brought = [refusals[path] for path in link.mapped if path in refusals]
            fatal = tuple(finding for findings in brought for finding in findings)
            opens_alone = link.is_opened and not _is_fatal(fatal)
            findings = (*fatal, *link_findings(link, context))
            loaded = [linkable[path] for path in link.mapped if path in linkable]
            if not opens_alone and each.path in carriers:
                findings = (_carried_finding(each.path, carriers[each.path]),)
            yield FileReport(
                path=each.path,
                machine=each.elf.machine,
                opens_alone=opens_alone,
                findings=(
                    *findings,
                    *self._process_findings(loaded),
                    *self._later_findings(each, wheel),
                ),
            )
        unreadable = [
            *(broken_finding(each.path, each.problem) for each in wheel.needs.broken),
            *(misnamed_finding(each, self.host, wheel.machines) for each in wheel.needs.misnamed),
        ]
        for finding in filter(None, unreadable):
            yield FileReport(path=finding.file, machine="", opens_alone=False, findings=(finding,))

    def _is_linkable(self, needs: ObjectNeeds) -> bool:
        is_other_libc = self.host.libc == "musl" and needs.elf.needs_glibc
        return needs.elf.machine == self.host.machine and not is_other_libc

    def _links(
        self, wheel: PreparedWheel, linkable: Mapping[str, ObjectNeeds]
    ) -> Mapping[str, Link]:
        def link() -> Mapping[str, Link]:
            roots = [each for each in wheel.tree if each.path in linkable]
            return {link.path: link for link in self._linker.link(wheel.tree, roots)}

        return wheel.links.get((self._linker.libraries.system, self.host.machine), link)

    def _refusals(self, needs: ObjectNeeds) -> tuple[Finding, ...]:
        """Return findings about a file alone, independent of what it is linked with."""
        return (
            *mapping_findings(needs.path, needs.elf, self.host),
            *cpu_findings(needs.cpu, self.host, file=needs.path),
        )

    def _process_findings(self, loaded: Iterable[ObjectNeeds]) -> Iterator[Finding]:
        """Return why a process ends that uses a file, or one of those that are loaded with it."""
        for each in loaded:
            yield from allocator_findings(each.path, each.jemalloc_page_bytes, self.host)
            yield from code_findings(each.cpu, self.host, file=each.path)

    def _foreign_file(self, needs: ObjectNeeds, wheel: PreparedWheel) -> FileReport:
        if needs.elf.machine == self.host.machine:
            opens_alone = False
            finding = other_c_library_finding(needs.path, self.host)
        else:
            opens_alone = None
            finding = other_machine_finding(needs.path, needs.elf, self.host, wheel.machines)
        return FileReport(
            path=needs.path,
            machine=needs.elf.machine,
            opens_alone=opens_alone,
            findings=(finding,),
        )

    def _later_findings(self, needs: ObjectNeeds, wheel: PreparedWheel) -> Iterator[Finding]:
        """Return findings that matter at run time: libraries opened by name, CUDA, Python's ABI."""
        is_found = partial(self._is_found, wheel, needs.elf.machine)
        yield from opened_library_findings(
            needs.opened, is_found, file=needs.path, is_tegra=self._is_tegra
        )
        if needs.cuda is not None:
            yield from cuda_findings(needs.cuda, self.host, file=needs.path)
        yield from wheel.abi_findings(self.host.python)[needs.path]

    def _is_found(self, wheel: PreparedWheel, machine: str, name: str) -> bool:
        """Return whether a library may be found when it is opened; unknown for hosts that are
        policies.
        """
        return (
            not self.host.is_complete
            or self._linker.libraries.is_present(name)
            or wheel.tree.named(name, machine) is not None
        )


def _carriers(
    links: Mapping[str, Link], refusals: Mapping[str, tuple[Finding, ...]]
) -> dict[str, str]:
    """Return the files that are loaded along with another one, with its path: they need not open
    alone.
    """
    carriers: dict[str, str] = {}
    for link in links.values():
        if link.is_opened and not any(_is_fatal(refusals.get(path, ())) for path in link.mapped):
            for path in link.mapped:
                if path != link.path:
                    carriers.setdefault(path, link.path)
    return carriers


def _carried_finding(path: str, carrier: str) -> Finding:
    return Finding(
        code="opened-with",
        severity=Severity.NOTE,
        message=f"it cannot be opened alone, but does not have to be: {carrier} loads it",
        file=path,
    )


def _is_fatal(findings: tuple[Finding, ...]) -> bool:
    return any(each.severity is Severity.FATAL for each in findings)


def check_on_hosts(wheel: PreparedWheel, checks: Iterable[HostCheck]) -> WheelReport:
    """Check one wheel on several hosts, and return the reports in the order of the hosts.

    This is the logic of ``potluck wheel check``, without its command line. To check many wheels on
    many hosts, create one ``PreparedWheel`` per wheel and one ``HostCheck`` per host.
    """
    return WheelReport(
        file=wheel.needs.file,
        distribution=wheel.needs.distribution,
        minima=wheel.minima,
        promise=wheel.promise,
        hosts=tuple(check.check(wheel) for check in checks),
    )
