"""Reports about Jetsons, whose driver is a part of JetPack and cannot be installed by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.portability.linking import a_host, an_elf

from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import ObjectNeeds, WheelNeeds
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.cuda.fat_binary import CodeKind, CudaNeeds, GpuCode, GpuModule
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host, HostGpu
from potluck.portability.hosts.shipped import load_shipped_host, shipped_hosts
from potluck.portability.instructions.cpu_needs import CpuNeeds
from potluck.portability.linking.opened_libraries import library_kinds

JETSONS = [name for name in shipped_hosts() if name.startswith("jetpack-")]
INSTALL_DRIVER = re.compile(r"NVIDIA driver|NVIDIA's (whole )?driver")
GPUS = {
    "Nano": (5, 3),
    "Xavier": (7, 2),
    "Orin": (8, 7),
    "Thor": (11, 0),
    "": None,
}
TOOLKITS = ((10, 2), (11, 4), (12, 6), (13, 0), (13,), ())


def every_library() -> Iterator[str]:
    for kind in library_kinds():
        for stem in kind.stems:
            yield f"{stem.replace('*', 'x')}.so.1"


def every_build() -> Iterator[CudaNeeds]:
    codes = [
        GpuCode(kind=kind, capability=capability, version=version)
        for capability in ((5, 3), (7, 2), (7, 5), (8, 0), (8, 7), (9, 0), (11, 0), (12, 0))
        for kind, version in ((CodeKind.SASS, (1, 7)), (CodeKind.PTX, (8, 4)))
    ]
    all_codes = [(each,) for each in codes] + [tuple(codes), ()]
    for toolkit, of_module in itertools.product(TOOLKITS, all_codes):
        yield CudaNeeds(
            toolkit=toolkit,
            evidence="a test says so" if toolkit else "",
            modules=(GpuModule(codes=of_module, count=1),) if of_module else (),
            uses_driver=True,
        )


def a_wheel() -> PreparedWheel:
    """A wheel whose files need or open every known library, and have all sorts of GPU code."""
    elf = an_elf(machine="aarch64", mappable_page_bytes=0x10000)
    linking = replace(elf, needed=tuple(every_library()))
    empty = ObjectNeeds(path="p/a.so", elf=elf, cpu=CpuNeeds(), opened=(), cuda=None, facts=None)
    objects = [
        replace(empty, path="p/linking.so", elf=linking),
        replace(empty, path="p/opening.so", opened=tuple(every_library())),
        *(
            replace(empty, path=f"p/gpu_{number}.so", cuda=cuda)
            for number, cuda in enumerate(every_build())
        ),
    ]
    needs = WheelNeeds(file="p.whl", distribution=None, objects=tuple(objects), broken=(), links={})
    return PreparedWheel(needs)


def variations(host: Host) -> Iterator[Host]:
    """The host with each GPU, and examined or not."""
    for (name, capability), is_complete in itertools.product(GPUS.items(), (False, True)):
        gpus = (HostGpu(name=name, compute_capability=capability),) if name else ()
        yield replace(host, gpus=gpus, is_complete=is_complete)


@pytest.mark.parametrize("name", JETSONS)
def test_no_fix_says_to_install_the_driver(name: str) -> None:
    wheel = a_wheel()
    for host in variations(load_shipped_host(name)):
        findings = HostCheck(host).check(wheel).findings
        assert findings
        assert not [each for each in findings if INSTALL_DRIVER.search(each.fix)]


def test_elsewhere_fixes_name_the_driver() -> None:
    findings = HostCheck(a_host(machine="aarch64")).check(a_wheel()).findings
    assert [each for each in findings if INSTALL_DRIVER.search(each.fix)]


@pytest.mark.parametrize(
    "library", ["libnvbufsurface.so.1.0.0", "libnvscibuf.so.1", "libnvrm_gpu.so"]
)
def test_libraries_of_jetson_linux_belong_to_a_build_for_jetson(library: str) -> None:
    elf = an_elf(machine="aarch64", needed=[library])
    needs = ObjectNeeds(path="a.so", elf=elf, cpu=CpuNeeds(), opened=(), cuda=None, facts=None)
    opening = replace(
        needs,
        path="b.so",
        elf=replace(elf, needed=()),
        opened=(library,),
    )

    def found(host: Host) -> dict[str, Finding]:
        wheel = WheelNeeds(
            file="p.whl", distribution=None, objects=(needs, opening), broken=(), links={}
        )
        return {each.file: each for each in HostCheck(host).check(PreparedWheel(wheel)).findings}

    server = found(a_host(machine="aarch64"))
    assert server["a.so"].severity is Severity.FATAL
    assert server["b.so"].severity is Severity.LIKELY
    assert all("built for Jetson" in each.fix for each in server.values())
    jetson = found(replace(a_host(machine="aarch64"), tegra_release=(36, 4)))
    assert all("JetPack" in each.fix for each in jetson.values())
