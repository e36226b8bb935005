"""Plans with variants of wheels (PEP 825)."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.portability.folder_index import PYTHON, FolderIndex, a_host, planner

from potluck.errors import WheelDownloadError
from potluck.portability.hosts.host import Host, HostGpu
from potluck.portability.instructions.x86_instructions import level_flags
from potluck.portability.planning.index import IndexFile, WithLocalWheels, parse_variants_filename
from potluck.portability.planning.plan import PlannedWheel
from potluck.portability.planning.planner import Planner, UnplannableError

V3 = {"x86_64": {"level": ["v3"]}}
V4 = {"x86_64": {"level": ["v4"]}}
CUDA = {"nvidia": {"cuda_version_lower_bound": ["12.6"]}}
UNKNOWN = {"unheard_of": {"feature": ["on"]}}
ORDER = ("nvidia", "x86_64", "unheard_of")

PLAIN = replace(a_host(), cpu_features=level_flags()["x86-64-v3"])
A100 = replace(
    PLAIN,
    name="a100",
    cuda_driver=(570, 0),
    cuda_version=(12, 8),
    gpus=(HostGpu(name="A100", compute_capability=(8, 0)),),
)


def described(
    variants: Mapping[str, Any], *, order: tuple[str, ...] = ORDER, version: str = "v0.1.1"
) -> bytes:
    return json.dumps(
        {
            "$schema": f"https://example.org/{version}.json",
            "default-priorities": {"namespace": order},
            "variants": variants,
        }
    ).encode()


ALL: dict[str, Any] = {"null": {}, "v3": V3, "v4": V4, "cu126": CUDA, "odd": UNKNOWN}


@pytest.fixture
def index(tmp_path: Path) -> FolderIndex:
    """app 1.0, a plain wheel and a variant of every kind, which an index's file describes."""
    found = FolderIndex(tmp_path)
    found.add("app", "1.0")
    for label, properties in ALL.items():
        found.add_variant("app", "1.0", label, data=described({label: properties}))
    found.add_variants_file("app", "1.0", described(ALL))
    return found


def planned(index: FolderIndex, host: Host = PLAIN, *, with_variants: bool = True) -> PlannedWheel:
    plan = planner(index, host, with_variants=with_variants).plan_host(["app"], host.name)
    (wheel,) = (each for each in plan.wheels if each.name == "app")
    return wheel


def unused(wheel: PlannedWheel) -> dict[str, str]:
    return {each.label: each.reason for each in wheel.unused}


def failure(index: FolderIndex, *, with_variants: bool) -> str:
    with pytest.raises(UnplannableError) as caught:
        planned(index, with_variants=with_variants)
    (reason,) = caught.value.problem.reasons
    return reason.message


def test_the_preferred_variant_that_the_host_can_use(index: FolderIndex) -> None:
    assert planned(index, A100).label == "cu126"
    assert planned(index).label == "v3"
    assert planned(index, replace(PLAIN, cpu_features=frozenset())).label == "null"
    assert planned(index, with_variants=False).label == ""


def test_a_variant_that_cannot_be_judged_is_named(index: FolderIndex) -> None:
    reason = "it is not known whether the host has unheard_of :: feature :: on"
    assert unused(planned(index)) == {"odd": reason}
    assert not planned(index, with_variants=False).unused


def test_the_index_file_is_read_instead_of_the_wheels(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path, has_metadata=True)
    for version in ("1.0", "2.0", "3.0"):
        index.add_variant("app", version, "v3", data=described({"v3": V3}))
        index.add_variant("app", version, "v4", data=described({"v4": V4}))
        index.add_variants_file("app", version, described({"v3": V3, "v4": V4}))
    plan = planner(index, PLAIN, with_variants=True)
    assert plan.plan_host(["app"], PLAIN.name).versions() == {"app": "3.0"}
    assert [each for each in index.fetched if each.endswith(".json")] == ["app-3.0-variants.json"]
    assert plan.judge.num_read == 1


@pytest.mark.parametrize("has_ranges", [True, False])
def test_without_an_index_file_one_wheel_per_label_is_read(
    index: FolderIndex, has_ranges: bool
) -> None:
    index.has_ranges = has_ranges
    (index.folder / "app-1.0-variants.json").unlink()
    assert planned(index, A100).label == "cu126"
    assert planned(index).label == "v3"


def test_of_a_large_wheel_only_the_metadata_is_read_to_choose(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    members = {"core.so": b"\x7fELF" + random.Random(0).randbytes(1 << 20)}
    info = {"variant.json": described({"v4": V4})}
    wheel = index.add("app", "1.0", tag="py3-none-any-v4", members=members, info=info)
    index.add("app", "1.0")
    assert planned(index).label == ""
    assert wheel.name not in index.fetched
    assert index.num_bytes_sent < wheel.stat().st_size // 4


def test_a_label_that_is_not_described_is_not_used(index: FolderIndex) -> None:
    index.add_variants_file("app", "1.0", described({"null": {}}))
    wheel = planned(index, A100)
    assert wheel.label == "null"
    assert unused(wheel)["cu126"] == "app-1.0-variants.json does not describe it"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "app-1.0-variants.json is invalid: "),
        (described(ALL, version="v2.0.0"), "app-1.0-variants.json has version 2 of the format"),
        (described(ALL) + b" " * (1 << 20), "app-1.0-variants.json cannot be read: "),
    ],
)
def test_variants_are_ignored_if_the_index_file_is_malformed(
    index: FolderIndex, data: bytes, reason: str
) -> None:
    index.add_variants_file("app", "1.0", data)
    wheel = planned(index, A100)
    assert wheel.label == ""
    assert unused(wheel).keys() == ALL.keys()
    assert all(each.startswith(reason) for each in unused(wheel).values())


def test_an_index_file_with_another_digest_is_not_believed(
    index: FolderIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = index.fetch

    def fetch(file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        if file.filename.endswith(".json"):
            raise WheelDownloadError("the SHA-256 differs")
        honest(file, path, most_bytes=most_bytes)

    monkeypatch.setattr(index, "fetch", fetch)
    wheel = planned(index)
    assert wheel.label == ""
    assert "the SHA-256 differs" in unused(wheel)["v3"]


def test_wheels_that_order_their_namespaces_differently_are_ignored(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0")
    index.add_variant("app", "1.0", "v3", data=described({"v3": V3}, order=("x86_64",)))
    index.add_variant("app", "1.0", "cu126", data=described({"cu126": CUDA}, order=("nvidia",)))
    wheel = planned(index, A100)
    assert wheel.label == ""
    assert "order their namespaces differently" in unused(wheel)["v3"]


def test_a_wheel_without_its_description_is_not_used(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add_variant("app", "1.0", "v3")
    index.add_variant("app", "1.0", "null")
    wheel = planned(index)
    assert wheel.label == "null"
    assert unused(wheel) == {"v3": "it is the variant v3, but has no variant.json"}


def test_among_wheels_with_one_label_tags_and_build_decide(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    data = described({"v3": V3})
    for tag in ("py3-none-any", "1-py3-none-manylinux_2_17_x86_64"):
        index.add_variant("app", "1.0", "v3", tag=tag, data=data)
    wanted = index.add_variant(
        "app", "1.0", "v3", tag="2-py3-none-manylinux_2_17_x86_64", data=data
    )
    index.add_variant("app", "1.0", "v3", tag="cp311-cp311-manylinux_2_40_x86_64", data=data)
    assert planned(index).file.filename == wanted.name


def test_a_release_with_nothing_but_variants(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    for label, properties in (("v4", V4), ("cu126", CUDA)):
        index.add_variant("app", "1.0", label, data=described({label: properties}))
    assert failure(index, with_variants=False) == (
        "1.0: only variants of the wheel fit the host (cu126, v4), which pip ignores; "
        "try --variants"
    )
    assert failure(index, with_variants=True) == (
        "1.0: no variant of the wheel fits: cu126 (the host does not have nvidia :: "
        "cuda_version_lower_bound :: 12.6), v4 (the host does not have x86_64 :: level :: v4)"
    )


def test_tags_of_variants_are_explained_like_those_of_other_wheels(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add_variant("app", "1.0", "v3", tag="cp312-cp312-manylinux_2_17_x86_64")
    for with_variants in (True, False):
        assert failure(index, with_variants=with_variants) == (
            "1.0: the wheels are for cp312-cp312, but the host has CPython 3.11"
        )


def test_an_older_release_with_a_variant_that_fits(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    for version, label, properties in (("2.0", "v4", V4), ("1.0", "v3", V3)):
        index.add_variant("app", version, label, data=described({label: properties}))
    assert planned(index).version == "1.0"


def test_one_version_for_hosts_with_different_variants(index: FolderIndex) -> None:
    plan = planner(index, PLAIN, A100, with_variants=True).plan(["app"])
    assert plan.shared is not None
    assert [each.wheels[0].label for each in plan.shared] == ["v3", "cu126"]
    assert not plan.costs


def test_requirements_depend_on_the_variant(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    requires = ('fast; "nvidia" in variant_namespaces', 'slow; variant_label == "null"', "lib")
    for label, properties in (("null", {}), ("cu126", CUDA)):
        data = described({label: properties})
        index.add_variant("app", "1.0", label, *requires, data=data)
    for name in ("fast", "slow", "lib"):
        index.add(name, "1.0")
    plan = planner(index, PLAIN, A100, with_variants=True).plan(["app"])
    assert plan.shared is not None
    names = [set(each.versions()) for each in plan.shared]
    assert names == [{"app", "slow", "lib"}, {"app", "fast", "lib"}]


def test_withdrawn_variants_are_not_used(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0")
    index.yanked.add(index.add_variant("app", "1.0", "null").name)
    assert planned(index).label == ""


def local(index: FolderIndex, *wheels: Path) -> Planner:
    return Planner(WithLocalWheels(index, wheels), [PLAIN], default_python=PYTHON)


@pytest.mark.parametrize("label", ["v3", "null", "odd"])
def test_a_variant_that_the_user_names_is_used(
    index: FolderIndex, tmp_path: Path, label: str
) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    data = described({label: ALL[label]})
    wheel = FolderIndex(folder).add_variant("app", "0.9", label, data=data)
    (found,) = local(index, wheel).plan_host(["app"], PLAIN.name).wheels
    assert (found.version, found.label) == ("0.9", label)
    assert not found.unused


def test_a_variant_that_the_user_names_must_fit(index: FolderIndex, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    wheel = FolderIndex(folder).add_variant("app", "0.9", "v4", data=described({"v4": V4}))
    with pytest.raises(UnplannableError, match="does not have x86_64 :: level :: v4"):
        local(index, wheel).plan_host(["app"], PLAIN.name)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("app-1.0-variants.json", ("app", "1.0")),
        ("My_App-1.0+cu128-variants.json", ("my-app", "1.0+cu128")),
        ("app-variants.json", None),
        ("app-1.0-1-variants.json", ("app", "1.0.post1")),
        ("app-x-variants.json", None),
        ("-1.0-variants.json", None),
        ("app-1.0-py3-none-any.whl", None),
    ],
)
def test_names_of_index_files(filename: str, expected: tuple[str, str] | None) -> None:
    found = parse_variants_filename(filename)
    assert (None if found is None else (found[0], str(found[1]))) == expected
