from __future__ import annotations

import pytest
from support.portability.described_hosts import described_host

from potluck.portability.cuda.fat_binary import CodeKind, CudaNeeds, GpuCode, GpuModule
from potluck.portability.cuda.findings import (
    GpuCompatibility,
    code_compatibility,
    cuda_findings,
    host_cuda,
)
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host


def sass(major: int, minor: int) -> GpuCode:
    return GpuCode(kind=CodeKind.SASS, capability=(major, minor), version=(1, 7))


def ptx(major: int, minor: int, version: tuple[int, int]) -> GpuCode:
    return GpuCode(kind=CodeKind.PTX, capability=(major, minor), version=version)


LTO_IR = GpuCode(kind=CodeKind.OTHER, capability=(8, 0), version=(8, 0))


def found(needs: CudaNeeds, host: Host) -> dict[str, Finding]:
    findings = tuple(cuda_findings(needs, host, file="lib/x.so"))
    assert all(finding.file == "lib/x.so" for finding in findings)
    assert len({finding.code for finding in findings}) == len(findings)
    return {finding.code: finding for finding in findings}


def built(toolkit: tuple[int, ...], *modules: tuple[GpuCode, ...]) -> CudaNeeds:
    return CudaNeeds(
        toolkit=toolkit,
        evidence="a test says so" if toolkit else "",
        modules=tuple(GpuModule(codes=codes, count=2) for codes in modules),
        uses_driver=True,
    )


@pytest.mark.parametrize(
    ("code", "capability", "cuda", "compatibility"),
    [
        (sass(8, 0), (8, 0), (12, 0), GpuCompatibility.YES),
        (sass(8, 0), (8, 6), (12, 0), GpuCompatibility.YES),
        (sass(8, 6), (8, 0), (12, 0), GpuCompatibility.NO),
        (sass(8, 0), (9, 0), (12, 0), GpuCompatibility.NO),
        (sass(8, 0), (8, 7), (12, 0), GpuCompatibility.NOT_GUARANTEED),  # Orin
        (sass(8, 7), (8, 9), (12, 0), GpuCompatibility.NOT_GUARANTEED),
        (sass(8, 7), (8, 7), (12, 0), GpuCompatibility.YES),
        (sass(8, 0), (8, 0), None, GpuCompatibility.YES),
        (ptx(7, 5, (8, 0)), (12, 0), (12, 8), GpuCompatibility.YES),
        (ptx(9, 0, (8, 0)), (8, 9), (12, 8), GpuCompatibility.NO),
        (ptx(7, 5, (8, 7)), (8, 9), (12, 4), GpuCompatibility.NO),
        (ptx(7, 5, (8, 4)), (8, 9), (12, 4), GpuCompatibility.YES),
        (ptx(7, 5, (8, 4)), (8, 9), None, GpuCompatibility.NOT_GUARANTEED),
        (LTO_IR, (8, 0), (12, 8), GpuCompatibility.NO),
    ],
)
def test_which_code_runs_where(
    code: GpuCode,
    capability: tuple[int, int],
    cuda: tuple[int, int] | None,
    compatibility: GpuCompatibility,
) -> None:
    assert code_compatibility(code, capability, cuda) is compatibility


def test_a_host_without_a_driver_loads_without_cuda() -> None:
    findings = found(built((13, 0), (sass(9, 0),)), described_host())
    missing = findings["no-cuda-driver"]
    assert (missing.severity, missing.feature) == (Severity.LIMIT, "CUDA")
    assert "580.65.06" in missing.fix
    assert findings["cuda-build"].message == (
        "built with CUDA 13.0 (a test says so), which requires driver 580.65.06 or newer;"
        " GPU code for sm_90"
    )


def test_nothing_follows_of_a_policy_that_lists_no_driver() -> None:
    findings = found(built((13, 0), (sass(9, 0),)), described_host(is_complete=False))
    assert findings["no-cuda-driver"].severity is Severity.NOTE


def test_a_compiler_wants_no_driver() -> None:
    needs = CudaNeeds(toolkit=(13,), evidence="a test says so", modules=(), uses_driver=False)
    assert found(needs, described_host())["cuda-build"].message == (
        "built with CUDA 13 (a test says so)"
    )
    assert set(found(needs, described_host(driver=(535, 54, 3)))) == {"cuda-build"}


def test_a_driver_of_an_older_generation_is_too_old() -> None:
    findings = found(built((13, 0), (sass(9, 0),)), described_host(driver=(535, 183, 1)))
    old = findings["old-cuda-driver"]
    assert (old.severity, old.feature) == (Severity.LIMIT, "CUDA")
    assert "at most CUDA 12.2 (driver 535.183.1)" in old.message
    assert "580.65.06" in old.fix
    assert "a build for CUDA 12" in old.fix


def test_a_driver_from_before_the_table_is_too_old() -> None:
    old = found(built((11, 8), (sass(8, 0),)), described_host(driver=(390, 46)))["old-cuda-driver"]
    assert "older than CUDA 11 (driver 390.46)" in old.message
    assert old.fix == "install NVIDIA driver 450.80.02 or newer"


def test_a_driver_of_the_generation_is_new_enough_with_limits() -> None:
    findings = found(built((12, 8), (sass(9, 0),)), described_host(driver=(535, 183, 1)))
    assert "old-cuda-driver" not in findings
    limited = findings["limited-cuda-driver"]
    assert limited.severity is Severity.NOTE
    assert "570.26" in limited.fix


@pytest.mark.parametrize("driver", [(570, 26), (580, 95, 5)])
def test_a_driver_as_new_as_the_toolkit_limits_nothing(driver: tuple[int, ...]) -> None:
    assert set(found(built((12, 8), (sass(9, 0),)), described_host(driver=driver))) == {
        "cuda-build"
    }


def test_the_drivers_own_word_on_cuda_goes_before_its_number() -> None:
    """Jetson's drivers are numbered otherwise: 540.4.0 runs CUDA 12.6."""
    host = described_host(machine="aarch64", driver=(540, 4, 0), cuda=(12, 6))
    assert set(found(built((12, 6), (sass(8, 7),)), host)) == {"cuda-build"}


@pytest.mark.parametrize(
    ("release", "driver", "cuda"),
    [
        ((32, 6, 1), None, (10, 2)),
        ((35, 2, 1), None, (11, 4)),
        ((36, 4, 0), None, (12, 6)),
        ((36, 4, 0), (540, 4, 0), (12, 6)),
        ((), (540, 3, 0), (12, 2)),
        ((38, 2), None, (13, 0)),
        ((99,), None, (13, 0)),
        ((21, 8), None, None),
        ((), None, None),
    ],
)
def test_a_jetsons_cuda_is_that_of_its_jetpack(
    release: tuple[int, ...], driver: tuple[int, ...] | None, cuda: tuple[int, int] | None
) -> None:
    host = described_host(machine="aarch64", driver=driver, tegra_release=release)
    assert host_cuda(host) == cuda


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("release", [(32, 6, 1), (35, 2, 1), (36, 4, 0)])
def test_a_jetson_does_not_run_cuda_13_before_jetpack_7(
    release: tuple[int, ...], is_complete: bool
) -> None:
    host = described_host(machine="aarch64", tegra_release=release, is_complete=is_complete)
    findings = found(built((13, 0), (sass(8, 7),)), host)
    assert set(findings) == {"cuda-build", "old-cuda-driver"}
    old = findings["old-cuda-driver"]
    assert (old.severity, old.feature) == (Severity.LIMIT, "CUDA")
    assert "JetPack 7.0 or newer" in old.fix
    assert "is a Jetson" in old.message
    assert not any("NVIDIA driver" in each.message + each.fix for each in findings.values())
    assert not any("580" in each.message + each.fix for each in findings.values())


def test_a_jetson_with_jetpack_7_runs_cuda_13() -> None:
    host = described_host(machine="aarch64", tegra_release=(38, 2, 1))
    assert set(found(built((13, 0), (sass(11, 0),)), host)) == {"cuda-build"}


def test_a_newer_minor_version_takes_a_newer_jetpack() -> None:
    host = described_host(machine="aarch64", tegra_release=(36, 3, 0))
    limited = found(built((12, 6), (sass(8, 7),)), host)["limited-cuda-driver"]
    assert limited.severity is Severity.NOTE
    assert "JetPack" in limited.fix


def test_a_jetson_without_a_known_jetpack_may_not_run_it() -> None:
    host = described_host(machine="aarch64", gpus=[("Orin", (8, 7))])
    findings = found(built((13, 0), (sass(8, 7),)), host)
    assert set(findings) == {"cuda-build", "unknown-jetpack"}
    assert findings["unknown-jetpack"].severity is Severity.LIKELY
    assert findings["unknown-jetpack"].fix == "it requires JetPack 7.0 or newer"


def test_a_toolkit_without_a_minor_version_is_compared_by_its_generation() -> None:
    assert "old-cuda-driver" in found(built((13,)), described_host(cuda=(12, 8)))
    assert set(found(built((12,)), described_host(cuda=(12, 0)))) == {"cuda-build"}


def test_a_gpu_that_no_code_runs_on() -> None:
    needs = built((12, 8), (sass(9, 0), ptx(9, 0, (8, 7))), (LTO_IR,))
    host = described_host(cuda=(12, 8), gpus=[("A4000", (8, 6)), ("A4000", (8, 6))])
    missing = found(needs, host)["no-gpu-code"]
    assert missing.severity is Severity.LIMIT
    assert missing.message == (
        "nothing of its GPU code runs on A4000 (compute capability 8.6):"
        " it has compute_90 (PTX), sm_90"
    )
    assert "CUDA 13 or older" in missing.fix


def test_a_gpu_that_part_of_the_code_runs_on() -> None:
    needs = built((12, 8), (sass(8, 0),), (sass(9, 0),))
    host = described_host(cuda=(12, 8), gpus=[("A4000", (8, 6))])
    assert "2 of 4 parts" in found(needs, host)["no-gpu-code"].message


def test_an_old_gpu_is_sent_to_the_toolkit_that_still_knows_it() -> None:
    host = described_host(cuda=(12, 8), gpus=[("GTX 1080", (6, 1))])
    missing = found(built((12, 8), (sass(7, 5), sass(8, 0))), host)["no-gpu-code"]
    assert "CUDA 12 or older" in missing.fix


def test_a_gpu_that_code_runs_on_gives_nothing() -> None:
    needs = built((12, 8), (sass(8, 0), ptx(9, 0, (8, 7))), (LTO_IR,))
    gpus = [("A100", (8, 0)), ("B200", (10, 0)), ("?", None)]
    host = described_host(cuda=(12, 8), gpus=gpus)
    assert set(found(needs, host)) == {"cuda-build"}


@pytest.mark.parametrize(
    ("codes", "release", "cuda"),
    [
        ((sass(8, 0), sass(7, 2)), (36, 4), None),  # built for Jetson, but not for this one
        ((sass(8, 0),), (38, 4), None),  # builds for servers are for this JetPack, too
        ((sass(8, 0),), (), None),  # nothing is known about it
    ],
)
def test_code_for_a_neighbour_of_tegra_is_likely(
    codes: tuple[GpuCode, ...], release: tuple[int, ...], cuda: tuple[int, int] | None
) -> None:
    host = described_host(
        machine="aarch64", tegra_release=release, cuda=cuda, gpus=[("Orin", (8, 7))]
    )
    unpromised = found(built((12, 4), codes), host)["unpromised-gpu-code"]
    assert unpromised.severity is Severity.LIKELY


ORIN = ("Orin", (8, 7))


@pytest.mark.parametrize("gpus", [[], [ORIN]])
@pytest.mark.parametrize("release", [(35, 2, 1), (36, 4)])
def test_code_for_servers_does_not_run_on_a_jetson(
    release: tuple[int, ...], gpus: list[tuple[str, tuple[int, int]]]
) -> None:
    """As in the wheel of bitsandbytes, which has the same tags as one for Jetson would have."""
    host = described_host(machine="aarch64", tegra_release=release, gpus=gpus)
    needs = built((11,), (sass(7, 5), sass(8, 0), sass(9, 0)))
    findings = found(needs, host)
    assert set(findings) == {"cuda-build", "other-arm-target"}
    other = findings["other-arm-target"]
    assert (other.severity, other.feature) == (Severity.LIMIT, "CUDA")
    assert other.message == (
        "a host is a Jetson, but this file's GPU code was built for ARM servers (SBSA):"
        " it has sm_75, sm_80, sm_90"
    )
    assert f"JetPack {release[0] - 30}" in other.fix
    assert ("sm_87" in other.fix) is bool(gpus)


def test_a_jetson_is_known_by_the_cuda_of_its_driver_too() -> None:
    host = described_host(machine="aarch64", cuda=(12, 6), gpus=[ORIN])
    assert "other-arm-target" in found(built((12, 4), (sass(8, 0),)), host)


@pytest.mark.parametrize("gpus", [[], [ORIN]])
def test_a_jetson_may_compile_the_ptx_of_a_build_for_servers(
    gpus: list[tuple[str, tuple[int, int]]],
) -> None:
    host = described_host(machine="aarch64", tegra_release=(36, 4), gpus=gpus)
    older = built((12, 4), (sass(9, 0), ptx(8, 0, (8, 4))))
    assert found(older, host)["other-arm-target"].severity is Severity.LIKELY
    newer = built((12, 4), (sass(9, 0), ptx(9, 0, (8, 4))))
    assert found(newer, host)["other-arm-target"].severity is Severity.LIMIT


def test_a_discrete_gpu_beside_that_of_a_tegra_runs_code_for_servers() -> None:
    gpus = [ORIN, ("RTX A6000", (8, 6))]
    host = described_host(machine="aarch64", tegra_release=(36, 4), gpus=gpus)
    findings = found(built((12, 4), (sass(8, 0),)), host)
    assert "other-arm-target" not in findings


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 1)])
def test_code_for_jetson_does_not_run_on_a_server(capability: tuple[int, int]) -> None:
    host = described_host(machine="aarch64", cuda=(12, 8), gpus=[("a GPU", capability)])
    findings = found(built((12, 6), (sass(7, 2), sass(8, 7), sass(10, 1))), host)
    assert set(findings) == {"cuda-build", "other-arm-target"}
    other = findings["other-arm-target"]
    assert other.severity is Severity.LIMIT
    assert "a host is not a Jetson, but" in other.message
    assert "SBSA" in other.fix


def test_a_build_for_both_says_nothing_of_targets() -> None:
    needs = built((12, 6), (sass(8, 7), sass(9, 0)))
    for host in (
        described_host(machine="aarch64", tegra_release=(36, 4), gpus=[ORIN]),
        described_host(machine="aarch64", cuda=(12, 8), gpus=[("GH200", (9, 0))]),
    ):
        assert set(found(needs, host)) == {"cuda-build"}


def test_a_build_for_thor_is_one_for_servers() -> None:
    host = described_host(machine="aarch64", cuda=(13, 0), gpus=[("GH200", (9, 0))])
    assert set(found(built((13, 0), (sass(11, 0),)), host)) == {"cuda-build", "no-gpu-code"}


def test_other_machines_have_one_target() -> None:
    host = described_host(cuda=(12, 8), gpus=[("A100", (8, 0))])
    assert set(found(built((12, 6), (sass(8, 7),)), host)) == {"cuda-build", "no-gpu-code"}


def test_code_that_could_not_be_read_is_said() -> None:
    needs = CudaNeeds(
        toolkit=(), evidence="", modules=(), uses_driver=True, problem="it is cut short"
    )
    findings = found(needs, described_host(cuda=(12, 0)))
    assert set(findings) == {"unreadable-gpu-code"}
    assert "it is cut short" in findings["unreadable-gpu-code"].message
