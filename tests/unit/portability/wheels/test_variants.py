"""Names and properties of variants of wheels (PEP 825)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.portability.wheel_bytes import write_wheel

from potluck.portability.wheels.file import Distribution, open_package
from potluck.portability.wheels.variants import (
    Variant,
    namespace_order,
    parse_variant,
    parse_variants,
    split_label,
)

PLATFORM = "manylinux_2_28_x86_64"
TAG = f"cp310-cp310-{PLATFORM}"


def document(**variants: Any) -> bytes:
    return json.dumps(
        {
            "$schema": "https://example.org/v0.1.1.json",
            "default-priorities": {"namespace": ["nvidia"]},
            "variants": variants,
        }
    ).encode()


@pytest.mark.parametrize(
    ("name", "without", "label"),
    [
        (f"torch-2.8.0-{TAG}-cu128.whl", f"torch-2.8.0-{TAG}.whl", "cu128"),
        (f"torch-2.8.0-{TAG}-null.whl", f"torch-2.8.0-{TAG}.whl", "null"),
        (f"torch-2.8.0-1a-{TAG}-x86_64_v3.whl", f"torch-2.8.0-1a-{TAG}.whl", "x86_64_v3"),
        (f"torch-2.8.0-1a-{TAG}.whl", f"torch-2.8.0-1a-{TAG}.whl", ""),
        (f"torch-2.8.0-{TAG}.whl", f"torch-2.8.0-{TAG}.whl", ""),
        (f"torch-2.8.0-{TAG}-CU.whl", f"torch-2.8.0-{TAG}-CU.whl", ""),
        (f"torch-2.8.0-{TAG}-a-b.whl", f"torch-2.8.0-{TAG}-a-b.whl", ""),
        ("torch.whl", "torch.whl", ""),
    ],
)
def test_labels(name: str, without: str, label: str) -> None:
    assert split_label(name) == (without, label)


def test_the_properties_of_a_label() -> None:
    properties = {"nvidia": {"sm_arch": ["90_real", "120_real"]}, "x86_64": {"level": ["v3"]}}
    found = parse_variant(document(cu128=properties, null={}), "cu128")
    assert found == Variant(
        label="cu128",
        properties={"nvidia": {"sm_arch": ("90_real", "120_real")}, "x86_64": {"level": ("v3",)}},
        namespaces=("nvidia",),
    )


def test_the_variants_of_a_release_by_label() -> None:
    found = parse_variants(document(v3={"x86_64": {"level": ["v3"]}}, null={"x86_64": {"a": []}}))
    assert {label: each.properties for label, each in found.items()} == {
        "v3": {"x86_64": {"level": ("v3",)}},
        "null": {},
    }


@pytest.mark.parametrize("version", ["v0.0.3", "v0.1.1", "v1.0.0", "v1.7.2"])
def test_known_versions_of_the_format(version: str) -> None:
    schema = f"https://example.org/peps/825/{version}.json"
    assert parse_variants(json.dumps({"$schema": schema, "variants": {"x": {}}}).encode())


@pytest.mark.parametrize("version", ["v2.0.0", "v10.0.0"])
def test_an_unknown_major_version_is_refused(version: str) -> None:
    schema = f"https://example.org/{version}.json"
    data = json.dumps({"$schema": schema, "variants": {"cu128": {}}}).encode()
    with pytest.raises(ValueError, match="of the format, but only 1 is known"):
        parse_variant(data, "cu128")


def ordered(*lists: tuple[str, ...]) -> tuple[str, ...]:
    return namespace_order(Variant(label="x", properties={}, namespaces=each) for each in lists)


def test_the_longest_list_of_namespaces_counts() -> None:
    assert ordered() == ()
    assert ordered(("a",), ("a", "b", "c"), (), ("a", "b")) == ("a", "b", "c")
    for lists in [(("a", "b"), ("b",)), (("a", "b"), ("b", "a"))]:
        with pytest.raises(ValueError, match="order their namespaces differently"):
            ordered(*lists)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is invalid"),
        (b"[]", "is invalid"),
        (b"\xff", "is invalid"),
        (b'{"variants": ' + b'{"x": ' * 100_000, "is invalid"),
        (document(cu128=[]), "is invalid"),
        (b'{"$schema": 1, "variants": {}}', "is invalid"),
        (b'{"default-priorities": {"namespace": "x"}, "variants": {}}', "is invalid"),
        (b'{"default-priorities": {"namespace": ["\\n"]}, "variants": {}}', "invalid names"),
        (document(cu129={}), "does not describe the variant cu128"),
        (document(cu128={"NVIDIA": {}}), "invalid names"),
        (document(cu128={"nvidia": {"a b": []}}), "invalid names"),
        (document(cu128={"nvidia": {"a": ["\n"]}}), "invalid names"),
    ],
)
def test_properties_that_are_invalid(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_variant(data, "cu128")


def distribution(path: Path) -> Distribution:
    with open_package(path) as package:
        assert package.distribution is not None
        return package.distribution


def test_a_wheel_is_one_of_several_variants(tmp_path: Path) -> None:
    info = {"variant.json": document(v3={"x86_64": {"level": ["v3"]}})}
    found = distribution(write_wheel(tmp_path, tag=f"{TAG}-v3", info=info))
    assert found.tags == (TAG,)
    assert found.variant == Variant(
        label="v3", properties={"x86_64": {"level": ("v3",)}}, namespaces=("nvidia",)
    )
    assert not found.problem
    null = distribution(write_wheel(tmp_path, tag=f"{TAG}-null"))
    assert null.variant == Variant(label="null", properties={})
    assert not null.problem


def test_a_variant_without_properties_is_refused(tmp_path: Path) -> None:
    found = distribution(write_wheel(tmp_path, tag=f"{TAG}-v3"))
    assert found.problem == "it is the variant v3, but has no variant.json"
    broken = distribution(write_wheel(tmp_path, tag=f"{TAG}-v4", info={"variant.json": b"{}"}))
    assert "variant.json is invalid" in broken.problem
