"""Which variant installers prefer on a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from support.portability.described_hosts import described_host

from potluck.portability.checks.variant_properties import host_namespaces, variant_rank
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.x86_instructions import level_flags
from potluck.portability.wheels.variants import Variant

FLAGS = level_flags()["x86-64-v4"] | {"avx512_bf16", "gfni"}
HOST = described_host(
    cpu_features=FLAGS, driver=(570, 0), cuda=(12, 8), gpus=[("A100", (8, 0)), ("L40", (8, 9))]
)
ARM = described_host(machine="aarch64", cpu_features={"asimddp", "i8mm", "sve"})
RADEON = described_host(amd_architectures=["gfx1030"])

Properties = Mapping[str, Mapping[str, Sequence[str]]]


def variant(label: str, properties: Properties) -> Variant:
    tuples = {
        name: {feature: tuple(values) for feature, values in features.items()}
        for name, features in properties.items()
    }
    return Variant(label=label, properties=tuples)


def preferred(host: Host, order: Sequence[str], *variants: tuple[str, Properties]) -> list[str]:
    namespaces = host_namespaces(host)
    found = [variant(label, properties) for label, properties in variants]
    found.sort(key=lambda each: variant_rank(each, order, namespaces))
    return [each.label for each in found]


def test_namespaces_are_in_the_order_of_the_release() -> None:
    gpu = ("gpu", {"nvidia": {"cuda_version_lower_bound": ["12.6"]}})
    level = ("level", {"x86_64": {"level": ["v4"]}})
    blas = ("blas", {"blas_lapack": {"library": ["mkl"]}})
    null: tuple[str, Properties] = ("null", {})
    assert preferred(HOST, ["nvidia", "x86_64"], null, blas, level, gpu) == [
        "gpu",
        "level",
        "blas",
        "null",
    ]
    assert preferred(HOST, ["x86_64", "nvidia"], gpu, level) == ["level", "gpu"]


@pytest.mark.parametrize(
    ("host", "namespace", "feature", "values"),
    [
        (HOST, "x86_64", "level", ["v4", "v3", "v2", "v1"]),
        (HOST, "nvidia", "cuda_version_lower_bound", ["12.8", "12.6", "12.0", "12", "11.8", "11"]),
        (HOST, "nvidia", "cuda_version_upper_bound", ["14", "13.0", "13", "12.9"]),
        (HOST, "nvidia", "sm_arch", ["89_real", "86_real", "80_real", "80_virtual", "75_virtual"]),
        (HOST, "blas_lapack", "library", ["accelerate", "openblas", "mkl"]),
        (HOST, "openmp", "provider", ["gnu", "intel", "llvm"]),
    ],
)
def test_values_are_in_the_order_of_the_provider(
    host: Host, namespace: str, feature: str, values: list[str]
) -> None:
    variants = [(f"x{value}", {namespace: {feature: [value]}}) for value in reversed(values)]
    assert preferred(host, [namespace], *variants) == [f"x{value}" for value in values]


@pytest.mark.parametrize(
    ("host", "namespace", "properties"),
    [
        (HOST, "x86_64", {"level": "v2", "avx512_bf16": "on", "gfni": "on", "sse2": "on"}),
        (ARM, "aarch64", {"i8mm": "on", "asimddp": "on", "sve": "on"}),
        (HOST, "nvidia", {"cuda_version_lower_bound": "12.6", "sm_arch": "80_real"}),
    ],
)
def test_features_are_in_the_order_of_the_provider(
    host: Host, namespace: str, properties: dict[str, str]
) -> None:
    variants = [
        (feature, {namespace: {feature: [value]}})
        for feature, value in reversed(properties.items())
    ]
    assert preferred(host, [namespace], *variants) == list(properties)


def test_only_the_best_value_that_the_host_has_counts() -> None:
    many = ("many", {"nvidia": {"sm_arch": ["120_real", "80_real", "75_real"]}})
    one = ("one", {"nvidia": {"sm_arch": ["89_real"]}})
    assert preferred(HOST, ["nvidia"], many, one) == ["one", "many"]


def test_more_properties_are_preferred_and_then_the_label_decides() -> None:
    v3: Properties = {"x86_64": {"level": ["v3"]}}
    both = {**v3, "blas_lapack": {"library": ["mkl"]}}
    order = ["x86_64", "blas_lapack"]
    found = preferred(HOST, order, ("null", {}), ("b", v3), ("a", v3), ("z", both))
    assert found == ["z", "a", "b", "null"]
    better = ("better", {"x86_64": {"level": ["v4"]}})
    assert preferred(HOST, order, ("z", both), better) == ["better", "z"]


def test_architectures_of_amd_come_before_versions_of_rocm() -> None:
    one = ("one", {"amd": {"gfx_arch": ["gfx1030"]}})
    assert preferred(RADEON, ["amd"], ("null", {}), one) == ["one", "null"]
