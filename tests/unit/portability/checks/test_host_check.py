"""Whole checks: verdicts, reasons and fixes, from what was read of a wheel and a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from support.portability.linking import a_host, a_library, an_elf, undefined

from potluck.portability.checks.host_check import HostCheck, check_on_hosts
from potluck.portability.checks.needs import BrokenObject, ObjectNeeds, WheelNeeds
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import HostReport
from potluck.portability.elf.file import ElfFile
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.cpu_needs import CpuNeeds
from potluck.portability.linking.promises import Promise
from potluck.portability.wheels.file import Distribution


def needs_of(
    objects: Mapping[str, ElfFile],
    *,
    name: str = "pack",
    tags: Sequence[str] = ("cp311-cp311-manylinux_2_17_x86_64",),
    requires: Sequence[str] = (),
) -> WheelNeeds:
    return WheelNeeds(
        file=f"{name}.whl",
        distribution=Distribution(
            name=name,
            version="1.0",
            tags=tuple(tags),
            requires_python="",
            requires=tuple(requires),
        ),
        objects=tuple(
            ObjectNeeds(path=path, elf=elf, cpu=CpuNeeds(), opened=(), cuda=None, facts=None)
            for path, elf in objects.items()
        ),
        broken=(),
        links={},
    )


def report(needs: WheelNeeds, host: Host | None = None) -> HostReport:
    return HostCheck(host or a_host()).check(PreparedWheel(needs))


def only(found: HostReport) -> Finding:
    (finding,) = found.findings
    return finding


def test_a_wheel_that_loads() -> None:
    elf = an_elf(needed=["libc.so.6"], wants=["malloc@GLIBC_2.2.5", "PyModule_Create2"])
    found = report(needs_of({"a.so": elf}))
    assert found.verdict is Verdict.LOADS
    assert found.is_installed
    assert [each.opens_alone for each in found.files] == [True]
    assert found.findings == ()


def test_a_wheel_without_native_code_loads() -> None:
    assert report(needs_of({}, tags=["py3-none-any"])).verdict is Verdict.LOADS


def test_a_missing_version_has_a_fix() -> None:
    elf = an_elf(needed=["libc.so.6"], wants=["f@GLIBC_2.36", "g@GLIBC_2.36"])
    finding = only(report(needs_of({"a.so": elf})))
    assert (finding.code, finding.severity) == ("missing-version", Severity.FATAL)
    assert finding.symbol == "f@GLIBC_2.36"
    assert finding.message == (
        "it needs GLIBC_2.36 of libc.so.6 (f, g), but a host has at most GLIBC_2.34"
    )
    assert "Debian 12" in finding.fix
    assert "older release of pack," in finding.fix


@pytest.mark.parametrize("version", ["GLIBC_2", "GLIBC_²", "GLIBC_2.²", "GLIBC_2." + "1" * 5000])
def test_a_missing_version_that_no_release_has(version: str) -> None:
    elf = an_elf(needed=["libc.so.6"], wants=[f"f@{version}"])
    finding = only(report(needs_of({"a.so": elf})))
    assert finding.code == "missing-version"
    assert finding.fix == "an older release of pack, or one built from source there"


def test_a_version_between_those_that_are_there() -> None:
    elf = an_elf(needed=["libc.so.6"], wants=["f@GLIBC_2.33"])
    assert only(report(needs_of({"a.so": elf}))).message.endswith("but a host does not define it")


def test_a_missing_symbol() -> None:
    elf = an_elf(needed=["libc.so.6"], wants=["nothing@GLIBC_2.2.5"])
    finding = only(report(needs_of({"a.so": elf})))
    assert (finding.code, finding.symbol) == ("missing-symbol", "nothing@GLIBC_2.2.5")


def test_many_missing_symbols_are_counted() -> None:
    elf = an_elf(wants=[f"f{number:02}" for number in range(25)])
    found = report(needs_of({"a.so": elf})).findings
    assert len(found) == 20
    assert "and 5 other symbols" in found[-1].message
    assert all("other symbols" not in each.message for each in found[:-1])


@pytest.mark.parametrize(
    ("library", "host", "code", "severity"),
    [
        ("libx.so.1", a_host(), "missing-library", Severity.FATAL),
        ("libx.so.1", a_host(is_complete=False), "missing-library", Severity.LIKELY),
        ("libc.musl-x86_64.so.1", a_host(), "other-c-library", Severity.FATAL),
        ("libtorch.so", a_host(), "from-requirement", Severity.LIKELY),
    ],
)
def test_a_missing_library(library: str, host: Host, code: str, severity: Severity) -> None:
    elf = an_elf(needed=[library])
    found = report(needs_of({"a.so": elf}, requires=["torch>=2"]), host)
    finding = only(found)
    assert (finding.code, finding.severity, finding.library) == (code, severity, library)
    assert found.files[0].opens_alone is False


def test_a_library_is_left_to_a_requirement_by_its_own_name_alone() -> None:
    """That one library comes with a requirement says nothing of those beside it."""
    elf = an_elf(
        needed=["libcudnn.so.9", "libcuda.so.1", "libodd.so.1"],
        runpath=["$ORIGIN/../nvidia/cudnn/lib", "$ORIGIN/../nvidia/cublas/lib"],
    )
    needs = needs_of({"p/a.so": elf}, requires=["nvidia-cudnn-cu13", "nvidia-cublas"])
    found = report(needs)
    assert {each.library: (each.code, each.severity) for each in found.findings} == {
        "libcudnn.so.9": ("from-requirement", Severity.LIKELY),
        "libcuda.so.1": ("missing-library", Severity.FATAL),
        "libodd.so.1": ("missing-library", Severity.FATAL),
    }
    assert found.verdict is Verdict.WILL_NOT_LOAD
    driver = next(each for each in found.findings if each.library == "libcuda.so.1")
    assert "NVIDIA's driver" in driver.fix


def test_what_pytorch_brings_is_left_to_it() -> None:
    elf = an_elf(needed=["libtorch.so", "libc10.so"])
    found = report(needs_of({"a.so": elf}, requires=["torch"]))
    assert [each.code for each in found.findings] == ["from-requirement"] * 2


def test_advice_names_the_project_that_has_a_library() -> None:
    """Even where the wheel does not require it: torchaudio 2.11 does not require torch."""
    finding = only(report(needs_of({"a.so": an_elf(needed=["libc10.so"])})))
    assert (finding.code, finding.severity) == ("missing-library", Severity.FATAL)
    assert finding.fix == "install torch from PyPI, which contains it"


def test_what_the_package_opens_first() -> None:
    objects = {
        "p/a.so": an_elf(needed=["libx.so"], wants=["g"]),
        "p/lib/libx.so": an_elf(gives=["f"]),
        "p/lib/liby.so": an_elf(gives=["g"]),
    }
    found = report(needs_of(objects))
    assert [(each.code, each.severity) for each in found.findings] == [
        ("opened-before", Severity.LIKELY)
    ] * 2
    assert found.verdict is Verdict.LOADS
    assert [each.opens_alone for each in found.files] == [False, True, True]


def test_a_part_need_not_open_alone() -> None:
    """It finds its neighbour by the RPATH of who brings it along."""
    objects = {
        "p/a.so": an_elf(needed=["lib1.so"], rpath=["$ORIGIN/lib"]),
        "p/lib/lib1.so": an_elf(needed=["lib2.so"], wants=["nothing_else"]),
        "p/lib/lib2.so": an_elf(gives=["nothing_else"]),
    }
    found = report(needs_of(objects))
    assert found.verdict is Verdict.LOADS
    assert only(found).code == "opened-with"
    assert [each.opens_alone for each in found.files] == [True, False, True]


def test_files_for_another_machine() -> None:
    arm = an_elf(machine="aarch64")
    finding = only(report(needs_of({"a.so": arm})))
    assert (finding.code, finding.severity) == ("other-machine", Severity.FATAL)
    both = report(needs_of({"a.so": arm, "b.so": an_elf()}))
    assert only(both).severity is Severity.NOTE
    assert [each.opens_alone for each in both.files] == [None, True]
    assert both.verdict is Verdict.LOADS


def test_glibc_on_musl() -> None:
    host = a_host(libc="musl", libc_version=(1, 2))
    finding = only(report(needs_of({"a.so": an_elf(needed=["libc.so.6"])}), host))
    assert (finding.code, finding.severity) == ("other-c-library", Severity.FATAL)


def test_a_broken_file() -> None:
    needs = replace(needs_of({}), broken=(BrokenObject(path="a.so", problem="it is cut short"),))
    found = report(needs)
    assert found.verdict is Verdict.WILL_NOT_LOAD
    assert "cut short" in only(found).message


OLD_16K = a_host(libc_version=(2, 34), page_bytes=0x4000)
NEW_16K = a_host(libc_version=(2, 35), page_bytes=0x4000)


@pytest.mark.parametrize(
    ("elf", "host", "code"),
    [
        (an_elf(max_page_bytes=0x1000, mappable_page_bytes=0x10000), OLD_16K, "page-size"),
        (an_elf(max_page_bytes=0x10000, mappable_page_bytes=0x1000), OLD_16K, ""),
        (an_elf(max_page_bytes=0, mappable_page_bytes=0), OLD_16K, ""),
        (an_elf(max_page_bytes=0x10000, mappable_page_bytes=0x1000), NEW_16K, "page-size"),
        (an_elf(max_page_bytes=0x1000, mappable_page_bytes=0x4000), NEW_16K, ""),
        (an_elf(max_page_bytes=0, mappable_page_bytes=0), NEW_16K, ""),
        (an_elf(max_page_bytes=0x1000), a_host(page_bytes=None), ""),
        (an_elf(needs_executable_stack=True), a_host(libc_version=(2, 41)), "executable-stack"),
        (an_elf(needs_executable_stack=True), a_host(libc_version=(2, 40)), ""),
        (
            an_elf(needs_executable_stack=True, interpreter="/lib64/ld-linux-x86-64.so.2"),
            a_host(libc_version=(2, 41)),
            "",
        ),
        (an_elf(static_tls_bytes=4096), a_host(), "static-tls"),
        (an_elf(static_tls_bytes=512), a_host(), ""),
    ],
)
def test_what_the_linker_refuses_to_map(elf: ElfFile, host: Host, code: str) -> None:
    found = report(needs_of({"a.so": elf}), host)
    assert [each.code for each in found.findings] == ([code] if code else [])
    assert found.files[0].opens_alone is not bool(code)


def test_who_brings_along_what_is_refused_is_refused() -> None:
    objects = {
        "a.so": an_elf(needed=["libx.so"], runpath=["$ORIGIN"]),
        "libx.so": an_elf(needs_executable_stack=True),
    }
    found = report(needs_of(objects), a_host(libc_version=(2, 41)))
    assert [each.opens_alone for each in found.files] == [False, False]
    assert only(found).file == "libx.so"


@pytest.mark.parametrize(
    ("built_for", "page_bytes", "severity"),
    [
        (0x1000, 0x4000, Severity.FATAL),
        (0x4000, 0x10000, Severity.FATAL),
        (0x4000, 0x4000, None),
        (0x10000, 0x4000, None),
        (0, 0x4000, Severity.NOTE),
        (0, 0x1000, None),
        (0x1000, 0x1000, None),
        (0x1000, None, None),
        (None, 0x4000, None),
    ],
)
def test_an_allocator_that_was_built_for_smaller_pages(
    built_for: int | None, page_bytes: int | None, severity: Severity | None
) -> None:
    elf = an_elf(mappable_page_bytes=0x10000)
    objects = {"a.so": an_elf(needed=["liba.so"], runpath=["$ORIGIN"], mappable_page_bytes=0x10000)}
    needs = needs_of({**objects, "liba.so": elf})
    library = replace(needs.objects[1], jemalloc_page_bytes=built_for)
    needs = replace(needs, objects=(needs.objects[0], library), imported=(("a.so",),))
    found = report(needs, a_host(page_bytes=page_bytes))
    assert [each.opens_alone for each in found.files] == [True, True]
    findings = found.files[0].findings
    assert [each.severity for each in findings] == ([severity] if severity else [])
    assert all((each.code, each.file) == ("allocator-page-size", "liba.so") for each in findings)
    is_fatal = severity is Severity.FATAL
    assert (found.verdict is Verdict.WILL_NOT_LOAD) is is_fatal


def test_a_cpu_that_is_too_old() -> None:
    needs = needs_of({"a.so": an_elf()})
    cpu = CpuNeeds(level="x86-64-v3", flags=frozenset({"avx2", "sse2"}))
    needs = replace(needs, objects=(replace(needs.objects[0], cpu=cpu),))
    found = report(needs, a_host(cpu_features=["sse2"]))
    assert only(found).code == "cpu-level"
    assert found.files[0].opens_alone is False
    assert report(needs, a_host(cpu_features=["sse2", "avx2"])).findings == ()
    assert report(needs, a_host()).findings == ()


def test_code_for_newer_cpus_in_a_file_and_in_its_libraries() -> None:
    objects = {"a.so": an_elf(needed=["liba.so"], runpath=["$ORIGIN"]), "liba.so": an_elf()}
    needs = needs_of(objects)
    library = replace(needs.objects[1], cpu=CpuNeeds(code_flags=frozenset({"avx2"})))
    needs = replace(needs, objects=(needs.objects[0], library), imported=(("a.so",),))
    found = report(needs, a_host(cpu_features=["sse2"]))
    assert [each.opens_alone for each in found.files] == [True, True]
    (finding,) = found.files[0].findings
    assert (finding.code, finding.file) == ("illegal-instruction", "liba.so")
    assert found.verdict is Verdict.WILL_NOT_LOAD
    assert report(needs, a_host(cpu_features=["avx2"])).findings == ()


def test_libraries_that_are_opened_later() -> None:
    needs = needs_of({"p/a.so": an_elf(), "p/libown.so": an_elf()})
    opened = ("libOpenCL.so.1", "libown.so")
    needs = replace(needs, objects=(replace(needs.objects[0], opened=opened), needs.objects[1]))
    finding = only(report(needs))
    assert (finding.severity, finding.library) == (Severity.LIKELY, "libOpenCL.so.1")
    assert report(needs, a_host(a_library("libOpenCL.so.1"))).findings == ()
    assert report(needs, a_host(others=["libOpenCL.so.1"])).findings == ()
    assert report(needs, a_host(is_complete=False)).findings == ()


def test_a_jetsons_driver_comes_with_jetpack() -> None:
    """Whether a file needs its library or opens it later."""
    needs = needs_of({"a.so": an_elf(needed=["libcuda.so.1"]), "b.so": an_elf()})
    opening = replace(needs.objects[1], opened=("libnvidia-ml.so.1",))
    needs = replace(needs, objects=(needs.objects[0], opening))
    jetson = replace(a_host(), tegra_release=(36, 4, 0))
    found = {each.library: each for each in report(needs, jetson).findings}
    assert set(found) == {"libcuda.so.1", "libnvidia-ml.so.1"}
    assert all("JetPack" in each.fix for each in found.values())
    assert not any("NVIDIA's driver" in each.fix for each in found.values())
    other = {each.library: each for each in report(needs).findings}
    assert all("NVIDIA's driver" in each.fix for each in other.values())


def test_the_stable_abi() -> None:
    elf = an_elf(wants=["PyType_GetQualName"])  # since 3.11
    needs = needs_of({"a.so": elf}, tags=["cp38-abi3-manylinux_2_17_x86_64"])
    wheel = PreparedWheel(needs)
    for python, severity in (((3, 9), Severity.FATAL), ((3, 12), Severity.NOTE)):
        assert only(HostCheck(a_host(python=python)).check(wheel)).severity is severity


def test_a_refusal_by_tag_is_apart_from_the_verdict() -> None:
    elf = an_elf(needed=["libc.so.6"], wants=["malloc@GLIBC_2.2.5"])
    found = report(needs_of({"a.so": elf}, tags=["py3-none-manylinux_2_39_x86_64"]))
    assert found.verdict is Verdict.LOADS
    assert not found.is_installed


def test_rules_about_features_speak_of_what_is_python_alone() -> None:
    needs = needs_of({}, name="tinygrad", tags=["py3-none-any"])
    found = report(needs)
    assert found.verdict is Verdict.LOADS_WITHOUT
    assert "the backends CUDA and NV (NVIDIA)" in {each.feature for each in found.features}


def test_rules_about_features_speak_of_what_does_not_load() -> None:
    """warp-lang without its compiler for CPUs."""
    found = report(needs_of({"warp/bin/warp.so": an_elf()}, name="warp-lang"))
    assert found.verdict is Verdict.LOADS_WITHOUT
    assert any(each.feature == "kernels on CPUs" for each in found.features)


def test_one_wheel_on_several_hosts_and_its_promise() -> None:
    elf = an_elf(needed=["libm.so.6"], wants=[undefined("exp@GLIBC_2.29", "libm.so.6")])
    elf = replace(elf, needed=("libc.so.6", "libm.so.6"))
    wheel = PreparedWheel(needs_of({"a.so": elf}, tags=["py3-none-manylinux2014_x86_64"]))
    old = replace(a_host(), name="old", libraries=a_host().libraries[:1])
    found = check_on_hosts(wheel, [HostCheck(a_host()), HostCheck(old)])
    assert [each.verdict for each in found.hosts] == [Verdict.LOADS, Verdict.WILL_NOT_LOAD]
    assert found.promise is Promise.BROKEN
    assert [each.platform for each in found.minima] == ["manylinux_2_31_x86_64"]


def test_a_file_that_importing_does_not_load_is_a_limit() -> None:
    bad = an_elf(needed=["libx.so.1"])
    good = an_elf(needed=["libc.so.6"])
    needs = needs_of({"pack/_core.so": good, "pack/plugin.so": bad})
    assert report(needs).verdict is Verdict.WILL_NOT_LOAD

    found = report(replace(needs, imported=(("pack/_core.so",),)))
    assert found.verdict is Verdict.LOADS_WITHOUT
    finding = only(found)
    assert (finding.code, finding.severity) == ("missing-library", Severity.LIMIT)
    assert finding.feature == "plugin.so"
    assert finding.message.endswith("; importing pack does not load the file")
    assert [each.opens_alone for each in found.files] == [True, False]

    other_way = report(replace(needs, imported=(("pack/plugin.so",),)))
    assert other_way.verdict is Verdict.WILL_NOT_LOAD


def test_what_an_imported_file_brings_along_has_to_load() -> None:
    needs = needs_of(
        {
            "pack/_core.so": an_elf(needed=["libdep.so"], runpath=["$ORIGIN/lib"]),
            "pack/lib/libdep.so": an_elf(
                soname="libdep.so", wants=["f@GLIBC_2.99"], needed=["libc.so.6"]
            ),
        }
    )
    found = report(replace(needs, imported=(("pack/_core.so",),)))
    assert found.verdict is Verdict.WILL_NOT_LOAD


MPICH = "pack/MPI.mpich.cpython-311-x86_64-linux-gnu.so"
OPEN_MPI = "pack/MPI.openmpi.cpython-311-x86_64-linux-gnu.so"
MODULE_FILES = {
    MPICH: an_elf(needed=["libmpi.so.12"]),
    OPEN_MPI: an_elf(needed=["libmpi.so.40"]),
}


def alternatives(objects: Mapping[str, ElfFile], host: Host) -> HostReport:
    """Check files that are all of one module."""
    return report(replace(needs_of(objects), imported=(tuple(objects),)), host)


@pytest.mark.parametrize(
    ("library", "lacking", "instead"),
    [("libmpi.so.12", OPEN_MPI, "MPI.mpich."), ("libmpi.so.40", MPICH, "MPI.openmpi.")],
)
def test_one_file_of_a_module_is_enough(library: str, lacking: str, instead: str) -> None:
    found = alternatives(MODULE_FILES, a_host(others=[library]))
    assert found.verdict is Verdict.LOADS_WITHOUT
    finding = only(found)
    assert (finding.file, finding.severity) == (lacking, Severity.LIMIT)
    assert f"; importing pack can load {instead}" in finding.message


def test_a_module_of_which_no_file_loads() -> None:
    found = alternatives(MODULE_FILES, a_host())
    assert found.verdict is Verdict.WILL_NOT_LOAD
    assert [each.severity for each in found.findings] == [Severity.FATAL] * 2
    assert all("any one of the 2 files" in each.message for each in found.findings)


def test_a_module_of_which_all_files_load() -> None:
    host = a_host(others=["libmpi.so.12", "libmpi.so.40"])
    assert alternatives(MODULE_FILES, host).findings == ()


@pytest.mark.parametrize("suffix", [".so", ".abi3.so", ".cpython-311-x86_64-linux-gnu.so"])
def test_the_file_that_python_itself_loads_is_the_module(suffix: str) -> None:
    objects = {**MODULE_FILES, f"pack/MPI{suffix}": an_elf(needed=["libx.so.1"])}
    host = a_host(others=["libmpi.so.12", "libmpi.so.40"])
    found = alternatives(objects, host)
    assert found.verdict is Verdict.WILL_NOT_LOAD
    assert only(found).file == f"pack/MPI{suffix}"
    unknown = alternatives(objects, replace(host, python=None))
    assert unknown.verdict is Verdict.LOADS_WITHOUT


def test_a_file_for_another_python_is_no_loss() -> None:
    own = "pack/_core.cpython-311-x86_64-linux-gnu.so"
    other = "pack/_core.cpython-313-x86_64-linux-gnu.so"
    objects = {own: an_elf(), other: an_elf(needed=["libx.so.1"])}
    found = alternatives(objects, a_host())
    assert found.verdict is Verdict.LOADS
    assert (only(found).severity, only(found).feature) == (Severity.NOTE, "")
    assert alternatives(objects, a_host(python=(3, 13))).verdict is Verdict.WILL_NOT_LOAD


def test_a_file_for_another_machine_is_no_alternative() -> None:
    objects = {
        "pack/_core.cpython-311-aarch64-linux-gnu.so": an_elf(machine="aarch64"),
        "pack/_core.cpython-311-x86_64-linux-gnu.so": an_elf(needed=["libx.so.1"]),
    }
    for python in ((3, 11), None):
        assert alternatives(objects, a_host(python=python)).verdict is Verdict.WILL_NOT_LOAD


@pytest.mark.parametrize(
    ("is_attempted", "verdict"), [(True, Verdict.WILL_NOT_LOAD), (False, Verdict.LOADS_WITHOUT)]
)
def test_no_module_tolerates_that_the_process_aborts(is_attempted: bool, verdict: Verdict) -> None:
    """polars imports its library within ``try``."""
    needs = needs_of({"a.so": an_elf(mappable_page_bytes=0x10000)})
    needs = replace(needs, objects=(replace(needs.objects[0], jemalloc_page_bytes=0x1000),))
    needs = replace(
        needs, imported=(), attempted=frozenset({"a.so"}) if is_attempted else frozenset()
    )
    found = report(needs, a_host(page_bytes=0x4000))
    assert found.verdict is verdict
    assert ("importing pack does not load" in only(found).message) is not is_attempted
