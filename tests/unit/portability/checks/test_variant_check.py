"""Whether hosts have the properties of variants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.portability.checked_wheel import check_wheel
from support.portability.described_hosts import described_host
from support.portability.wheel_bytes import write_wheel

from potluck.portability.checks.variant_properties import variant_findings
from potluck.portability.finding import Severity
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.x86_instructions import level_flags
from potluck.portability.wheels.variants import Variant

V3 = level_flags()["x86-64-v3"]
PLAIN = described_host(cpu_features=V3)
UNKNOWN_CPU = described_host()
ARM = described_host(machine="aarch64", cpu_features={"asimd", "asimddp", "i8mm"})
A100 = described_host(driver=(570, 0), cuda=(12, 8), gpus=[("A100", (8, 0))])
L40 = described_host(driver=(570, 0), cuda=(12, 8), gpus=[("L40", (8, 9))])
POLICY = described_host(is_complete=False)
ROCM = described_host(libraries=["libhsa-runtime64.so.1"])
RADEON = described_host(amd_architectures=["gfx1030", "gfx1036"])
ARC = described_host(libraries=["libze_loader.so.1"])
NPU = described_host(libraries=["libascend_hal.so"])


@pytest.mark.parametrize(
    ("host", "namespace", "feature", "values", "expected"),
    [
        (PLAIN, "x86_64", "level", ["v3"], True),
        (PLAIN, "x86_64", "level", ["v4"], False),
        (PLAIN, "x86_64", "level", ["v4", "v2"], True),
        (PLAIN, "x86_64", "level", ["v9"], None),
        (PLAIN, "x86_64", "sse3", ["on"], True),
        (PLAIN, "x86_64", "avx512_bf16", ["on"], False),
        (PLAIN, "x86_64", "something_new", ["on"], None),
        (UNKNOWN_CPU, "x86_64", "level", ["v3"], None),
        (ARM, "x86_64", "level", ["v1"], False),
        (ARM, "aarch64", "dotprod", ["on"], True),
        (ARM, "aarch64", "fp16", ["on"], False),
        (ARM, "aarch64", "version", ["8.1a"], None),
        (PLAIN, "aarch64", "version", ["8.1a"], False),
        (A100, "nvidia", "cuda_version_lower_bound", ["12.8"], True),
        (A100, "nvidia", "cuda_version_lower_bound", ["12.9"], False),
        (A100, "nvidia", "cuda_version_lower_bound", ["13"], False),
        (A100, "nvidia", "cuda_version_upper_bound", ["13"], True),
        (A100, "nvidia", "cuda_version_upper_bound", ["12.8"], False),
        (A100, "nvidia", "cuda_version_lower_bound", ["new"], None),
        (PLAIN, "nvidia", "cuda_version_lower_bound", ["12.8"], False),
        (POLICY, "nvidia", "cuda_version_lower_bound", ["12.8"], None),
        (A100, "nvidia", "sm_arch", ["90_real", "80_real"], True),
        (A100, "nvidia", "sm_arch", ["86_real"], False),
        (L40, "nvidia", "sm_arch", ["86_real"], True),
        (L40, "nvidia", "sm_arch", ["75_real"], False),
        (L40, "nvidia", "sm_arch", ["75_virtual"], True),
        (L40, "nvidia", "sm_arch", ["100f_real"], False),
        (L40, "nvidia", "sm_arch", ["all"], None),
        (PLAIN, "nvidia", "sm_arch", ["80_real"], False),
        (POLICY, "nvidia", "sm_arch", ["80_real"], None),
        (PLAIN, "x86_64", "gfni", ["on"], False),
        (RADEON, "amd", "gfx_arch", ["gfx90a", "gfx1030"], True),
        (RADEON, "amd", "gfx_arch", ["gfx1100"], False),
        (RADEON, "amd", "rocm_version", ["6.4.3"], None),
        (ROCM, "amd", "gfx_arch", ["gfx1030"], None),
        (PLAIN, "amd", "gfx_arch", ["gfx1030"], False),
        (PLAIN, "amd", "rocm_version", ["6.4.3"], False),
        (POLICY, "amd", "gfx_arch", ["gfx1030"], None),
        (ARC, "intel", "device_ip", ["20.1.0"], None),
        (PLAIN, "intel", "device_ip", ["20.1.0"], False),
        (NPU, "ascend", "npu_type", ["910b"], None),
        (PLAIN, "ascend", "npu_type", ["910b"], False),
        (POLICY, "ascend", "npu_type", ["910b"], None),
        (PLAIN, "blas_lapack", "library", ["mkl"], True),
        (POLICY, "blas_lapack", "provider", ["openblas"], True),
        (PLAIN, "blas_lapack", "library", ["blis"], None),
        (ARM, "openmp", "provider", ["llvm"], True),
        (PLAIN, "openmp", "version", ["llvm"], None),
        (PLAIN, "unheard_of", "feature", ["on"], None),
        (PLAIN, "x86_64", "level", [], False),
    ],
)
def test_properties(
    host: Host, namespace: str, feature: str, values: list[str], expected: bool | None
) -> None:
    variant = Variant(label="x", properties={namespace: {feature: tuple(values)}})
    found = list(variant_findings(variant, host))
    if expected is True:
        assert found == []
        return
    (finding,) = found
    assert finding.severity is (Severity.NOTE if expected is None else Severity.FATAL)
    assert f"{namespace} :: {feature} :: {' or '.join(values)}" in finding.message


def test_a_variant_without_properties_is_for_every_host() -> None:
    assert not list(variant_findings(Variant(label="null", properties={}), ARM))


def test_a_variant_for_another_cpu_is_not_installed(tmp_path: Path) -> None:
    properties = {"x86_64": {"level": ["v4"]}, "unheard_of": {"feature": ["on"]}}
    data = json.dumps({"variants": {"v4": properties}}).encode()
    tag = "cp311-cp311-manylinux_2_17_x86_64-v4"
    path = write_wheel(tmp_path, tag=tag, info={"variant.json": data})
    (report,) = check_wheel(path, [PLAIN]).hosts
    assert report.refusal is not None
    assert "x86_64 :: level :: v4, which a host does not have" in report.refusal.message
    assert not report.is_installed
    assert [finding.code for finding in report.features] == ["variant-not-judged"]
