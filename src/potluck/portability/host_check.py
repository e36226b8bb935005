"""Checks wheels on one host: what the tags, the linker and the rules say, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from potluck.portability.cpu_needs import cpu_findings
from potluck.portability.cuda_findings import cuda_findings
from potluck.portability.cuda_table import shipped_table
from potluck.portability.features import feature_findings
from potluck.portability.file_findings import (
    broken_finding,
    mapping_findings,
    needs_glibc,
    other_c_library_finding,
    other_machine_finding,
)
from potluck.portability.finding import Finding, Severity
from potluck.portability.host import Host
from potluck.portability.link import PYTHON, Link, Linker, Process
from potluck.portability.link_findings import LinkContext, link_findings
from potluck.portability.needs import ObjectNeeds
from potluck.portability.opened_libraries import opened_library_findings
from potluck.portability.prepared_wheel import PreparedWheel
from potluck.portability.wheel_report import FileReport, HostReport
from potluck.portability.wheel_tags import install_finding


class HostCheck:
    """Checks wheels on one host. Made once for many of them.

    ``process`` is what opens their files: Python, if nothing else is said.
    """

    def __init__(self, host: Host, process: Process = PYTHON) -> None:
        self.host = host
        self._linker = Linker(host, process)
        self._table = shipped_table()

    def check(self, wheel: PreparedWheel) -> HostReport:
        """What there is to say of a wheel here."""
        files = tuple(self._files(wheel))
        found = [finding for each in files for finding in each.findings]
        distribution = wheel.needs.distribution
        features: tuple[Finding, ...] = ()
        # What is Python alone is for every machine.
        is_meant = not wheel.machines or self.host.machine in wheel.machines
        if wheel.rules is not None and is_meant:
            features = feature_findings(wheel.rules, wheel.build, self.host, self._table, found)
        return HostReport(
            host=self.host.name,
            origin=self.host.origin,
            machine=self.host.machine,
            refusal=install_finding(distribution, self.host) if distribution else None,
            files=files,
            features=features,
        )

    def _files(self, wheel: PreparedWheel) -> Iterator[FileReport]:
        linkable = {each.path: each for each in wheel.needs.objects if self._is_linkable(each)}
        links = self._links(wheel, linkable)
        refusals = {path: self._refusals(each) for path, each in linkable.items()}
        carriers = _carriers(links, refusals)
        context = LinkContext(host=self.host, required=wheel.required(self.host), label=wheel.label)
        for each in wheel.needs.objects:
            if each.path not in links:
                yield self._foreign_file(each, wheel)
                continue
            link = links[each.path]
            brought = [refusals[path] for path in link.mapped if path in refusals]
            fatal = tuple(finding for findings in brought for finding in findings)
            opens_alone = link.is_opened and not _is_fatal(fatal)
            findings = (*fatal, *link_findings(link, context))
            if not opens_alone and each.path in carriers:
                findings = (_carried_finding(each.path, carriers[each.path]),)
            yield FileReport(
                path=each.path,
                machine=each.elf.machine,
                opens_alone=opens_alone,
                findings=(*findings, *self._later_findings(each, wheel)),
            )
        for broken in wheel.needs.broken:
            yield FileReport(
                path=broken.path,
                machine="",
                opens_alone=False,
                findings=(broken_finding(broken.path, broken.problem),),
            )

    def _is_linkable(self, needs: ObjectNeeds) -> bool:
        is_other_libc = self.host.libc == "musl" and needs_glibc(needs.elf)
        return needs.elf.machine == self.host.machine and not is_other_libc

    def _links(
        self, wheel: PreparedWheel, linkable: Mapping[str, ObjectNeeds]
    ) -> Mapping[str, Link]:
        def link() -> Mapping[str, Link]:
            roots = [each for each in wheel.tree if each.path in linkable]
            return {link.path: link for link in self._linker.link(wheel.tree, roots)}

        return wheel.links.get((self._linker.depends_on, self.host.machine), link)

    def _refusals(self, needs: ObjectNeeds) -> tuple[Finding, ...]:
        """Of a file by itself, whatever it links with."""
        return (
            *mapping_findings(needs.path, needs.elf, self.host),
            *cpu_findings(needs.cpu, self.host, file=needs.path),
        )

    def _foreign_file(self, needs: ObjectNeeds, wheel: PreparedWheel) -> FileReport:
        is_other_machine = needs.elf.machine != self.host.machine
        finding = (
            other_machine_finding(needs.path, needs.elf, self.host, wheel.machines)
            if is_other_machine
            else other_c_library_finding(needs.path, self.host)
        )
        return FileReport(
            path=needs.path,
            machine=needs.elf.machine,
            opens_alone=None if is_other_machine else False,
            findings=(finding,),
        )

    def _later_findings(self, needs: ObjectNeeds, wheel: PreparedWheel) -> Iterator[Finding]:
        """What shows when the file is used: libraries opened by name, CUDA, Python's ABI."""
        is_found = partial(self._is_found, wheel, needs.elf.machine)
        yield from opened_library_findings(needs.opened, is_found, file=needs.path)
        if needs.cuda is not None:
            yield from cuda_findings(needs.cuda, self.host, self._table, file=needs.path)
        yield from wheel.abi_findings(self.host.python)[needs.path]

    def _is_found(self, wheel: PreparedWheel, machine: str, name: str) -> bool:
        """Whether a library may be found when it is opened: of a policy, nobody knows."""
        return (
            not self.host.is_complete
            or self._linker.libraries.is_present(name)
            or wheel.tree.named(name, machine) is not None
        )


def _carriers(
    links: Mapping[str, Link], refusals: Mapping[str, tuple[Finding, ...]]
) -> dict[str, str]:
    """Files that are loaded along with another one, by whose path: they need not open alone."""
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
        message=f"it does not open alone, and does not have to: {carrier} brings it along",
        file=path,
    )


def _is_fatal(findings: tuple[Finding, ...]) -> bool:
    return any(each.severity is Severity.FATAL for each in findings)
