"""Versions that go together, for one host and for several."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.portability.elf_bytes import Elf
from support.portability.folder_index import FolderIndex, a_host, planner

from potluck.errors import UsageError, WheelDownloadError
from potluck.portability.hosts.host import Host
from potluck.portability.planning.planner import UnplannableError

LOADS = {"core.so": Elf(needed=("libc.so.6",)).build()}
NEEDS_MORE = {"core.so": Elf(needed=("libnowhere.so.7",)).build()}


def versions(index: FolderIndex, texts: Sequence[str], host: Host | None = None) -> dict[str, str]:
    host = host or a_host()
    return dict(planner(index, host).plan_host(texts, host.name).versions())


def test_the_newest_with_what_it_requires(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0")
    index.add("app", "2.0", "lib>=1.1", 'only-windows; sys_platform == "win32"')
    for version in ("1.0", "1.2", "1.10"):
        index.add("lib", version)
    assert versions(index, ["app"]) == {"app": "2.0", "lib": "1.10"}
    assert index.queried_projects == ["app", "lib"]


def test_an_older_one_where_the_newest_excludes_another(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "2.0", "lib>=2")
    index.add("app", "1.0", "lib")
    index.add("lib", "1.0")
    index.add("lib", "2.0")
    assert versions(index, ["app", "lib<2"]) == {"app": "1.0", "lib": "1.0"}


def test_extras_bring_what_they_name_and_nothing_else_does(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", 'one; extra == "fast"', 'two; extra == "other"', "base")
    for name in ("one", "two", "base"):
        index.add(name, "1.0")
    assert set(versions(index, ["app[fast]"])) == {"app", "base", "one"}
    assert set(versions(index, ["app"])) == {"app", "base"}


def test_a_requirement_of_some_hosts_or_of_an_extra(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", "lib; sys_platform == 'linux' or extra == 'more'")
    index.add("lib", "1.0")
    for requested in ("app", "app[more]"):
        assert versions(index, [requested]) == {"app": "1.0", "lib": "1.0"}


def test_no_prereleases_and_nothing_withdrawn_unless_asked_for(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "3.0rc1")
    index.add("app", "2.0", is_yanked=True)
    index.add("app", "1.0")
    assert versions(index, ["app"]) == {"app": "1.0"}
    assert versions(index, ["app==2.0"]) == {"app": "2.0"}
    assert versions(index, ["app>=3.0rc1"]) == {"app": "3.0rc1"}


def test_a_release_that_does_not_load_is_passed_over(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    tag = "cp311-cp311-manylinux_2_17_x86_64"
    index.add("app", "2.0", tag=tag, members=NEEDS_MORE)
    index.add("app", "1.0", tag=tag, members=LOADS)
    assert versions(index, ["app"]) == {"app": "1.0"}


def test_of_many_that_do_not_load_few_are_read(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    tag = "cp311-cp311-manylinux_2_17_x86_64"
    for number in range(40):
        index.add("app", f"1.{number}", tag=tag, members=LOADS if number < 10 else NEEDS_MORE)
    plan = planner(index)
    assert plan.plan_host(["app"], "a host").versions() == {"app": "1.9"}
    assert plan.judge.num_read <= 8


def test_what_is_excluded_by_its_metadata_is_not_read(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path, has_metadata=True)
    tag = "cp311-cp311-manylinux_2_17_x86_64"
    index.add("app", "2.0", "lib>=9", tag=tag, members=LOADS)
    index.add("app", "1.0", "lib", tag=tag, members=LOADS)
    index.add("lib", "1.0")
    plan = planner(index)
    assert plan.plan_host(["app"], "a host").versions() == {"app": "1.0", "lib": "1.0"}
    assert plan.judge.num_read == 2


@pytest.mark.parametrize("has_ranges", [True, False])
def test_of_a_wheel_no_more_is_read_than_may_be_elf(tmp_path: Path, has_ranges: bool) -> None:
    index = FolderIndex(tmp_path, has_ranges=has_ranges)
    noise = bytes(range(256)) * 8192
    members = {f"data{number}.txt": noise[number:] * 2 for number in range(3)}
    wheel = index.add("app", "1.0", "lib", members={**members, **LOADS})
    index.add("lib", "1.0")
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("more.txt", noise)
        archive.writestr("app-late.so", LOADS["core.so"])
    assert versions(index, ["app"]) == {"app": "1.0", "lib": "1.0"}
    if has_ranges:
        assert not index.fetched
        assert index.num_bytes_sent < wheel.stat().st_size // 4
    else:
        assert wheel.name in index.fetched


def test_one_version_for_all_is_as_old_as_the_oldest_host_needs(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "2.0", tag="cp311-cp311-manylinux_2_34_x86_64", members=LOADS)
    index.add("app", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64", members=LOADS)
    plan = planner(index, a_host("old", glibc=28), a_host("new")).plan(["app"])
    assert plan.shared is not None
    assert [each.versions() for each in plan.shared] == [{"app": "1.0"}] * 2
    assert [each.versions() for each in plan.own] == [{"app": "1.0"}, {"app": "2.0"}]
    assert [(each.host, each.own_version) for each in plan.costs] == [("new", "2.0")]


def test_markers_bring_packages_for_some_hosts_alone(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", 'only-arm; platform_machine == "aarch64"')
    index.add("only_arm", "1.0", tag="py3-none-manylinux_2_17_aarch64")
    plan = planner(index, a_host("pc"), a_host("board", machine="aarch64")).plan(["app"])
    assert plan.shared is not None
    assert [set(each.versions()) for each in plan.shared] == [{"app"}, {"app", "only-arm"}]


def test_the_wheel_that_installers_prefer(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    for tag in ("py3-none-any", "cp311-abi3-manylinux_2_17_x86_64"):
        index.add("app", "1.0", tag=tag)
    wanted = index.add("app", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    index.add("app", "1.0", tag="cp311-cp311-manylinux_2_5_x86_64")
    index.add("app", "1.0", tag="cp311-cp311-musllinux_1_2_x86_64")
    (wheel,) = planner(index).plan_host(["app"], "a host").wheels
    assert wheel.file.filename == wanted.name


def test_free_threaded_pythons_take_their_own_wheels(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", tag="cp313-cp313-manylinux_2_17_x86_64")
    index.add("app", "1.0", tag="cp313-abi3-manylinux_2_17_x86_64")
    wanted = index.add("app", "1.0", tag="cp313-cp313t-manylinux_2_17_x86_64")
    host = a_host(python=(3, 13), is_free_threaded=True)
    (wheel,) = planner(index, host).plan_host(["app"], "a host").wheels
    assert wheel.file.filename == wanted.name


def test_hosts_without_a_known_python_get_the_default(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", requires_python=">=3.11")
    assert versions(index, ["app"], a_host(python=None)) == {"app": "1.0"}


def failure(index: FolderIndex, texts: Sequence[str], host: Host | None = None) -> UnplannableError:
    with pytest.raises(UnplannableError) as caught:
        versions(index, texts, host)
    return caught.value


def test_the_fewest_reasons_that_cover_all_releases(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "3.0", tag="cp311-cp311-manylinux_2_40_x86_64", requires_python=">=3.12")
    index.add("app", "2.0", tag="cp311-cp311-manylinux_2_39_x86_64")
    index.add("app", "1.0", tag="cp311-cp311-manylinux_2_38_x86_64")
    problem = failure(index, ["app"]).problem
    assert [each.message for each in problem.reasons] == [
        "1.0 to 3.0: the wheels require glibc 2.38, but the host has glibc 2.36"
    ]
    assert problem.reasons[0].versions == ("3.0", "2.0", "1.0")


def test_an_older_release_is_named_where_the_one_asked_for_does_not_fit(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "2.0", tag="cp311-cp311-manylinux_2_40_x86_64")
    index.add("app", "1.5", tag="cp311-cp311-manylinux_2_17_x86_64")
    (nearest,) = failure(index, ["app>=2"]).problem.nearest
    assert (nearest.kind, nearest.version) == ("release", "1.5")


def test_another_python_is_named_where_that_would_do(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", requires_python=">=3.9")
    (nearest,) = failure(index, ["app"], a_host(python=(3, 6))).problem.nearest
    assert nearest.message == "with Python 3.9, app 1.0 installs and loads there"


def test_what_excludes_one_another_is_named_and_nothing_else(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", "lib<2")
    index.add("tool", "1.0", "lib>=2")
    index.add("lib", "1.0")
    index.add("lib", "2.0")
    index.add("other", "1.0")
    problem = failure(index, ["other", "app", "tool"]).problem
    assert problem.package == "lib"
    assert set(problem.wanted) == {"<2 (for app)", ">=2 (for tool)"}


def test_a_package_that_the_index_does_not_have(tmp_path: Path) -> None:
    problem = failure(FolderIndex(tmp_path), ["nothing"]).problem
    assert [each.message for each in problem.reasons] == ["the index has no such package"]


def test_hosts_that_exclude_each_other_are_the_fewest(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "2.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    index.add("app", "1.0", tag="cp39-cp39-manylinux_2_17_x86_64")
    hosts = [a_host("a", python=(3, 9)), a_host("b", python=(3, 9)), a_host("c", python=(3, 12))]
    plan = planner(index, *hosts).plan(["app"])
    assert plan.shared is None
    assert len(plan.own) == 3
    (conflict,) = plan.conflicts
    assert conflict.hosts == ("a", "c")
    assert len(conflict.reasons) == 2


def test_fetched_wheels_are_what_was_planned(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0")
    plan = planner(index)
    (wheel,) = plan.plan_host(["app"], "a host").wheels
    path = plan.fetch(wheel, tmp_path / "kept")
    assert path.read_bytes() == (tmp_path / wheel.file.filename).read_bytes()
    assert plan.fetch(wheel, tmp_path / "kept") == path
    assert len(index.fetched) == 1


def test_wheels_without_requirements_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a requirement"):
        planner(FolderIndex(tmp_path)).plan(["app @ https://example.org/app.whl"])


def test_two_hosts_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same name"):
        planner(FolderIndex(tmp_path), a_host(), a_host())


def test_a_wheel_that_is_no_archive_is_passed_over(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0")
    (tmp_path / "app-2.0-py3-none-any.whl").write_bytes(b"no archive")
    assert versions(index, ["app"]) == {"app": "1.0"}


def test_a_wheel_of_an_unknown_version_of_zip_is_passed_over(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0")
    newest = index.add("app", "2.0")
    data = bytearray(newest.read_bytes())
    data[data.index(b"PK\1\2") + 6] = 99
    newest.write_bytes(data)
    assert versions(index, ["app"]) == {"app": "1.0"}


def test_an_index_that_does_not_answer_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FolderIndex(tmp_path)

    def refuse(project: str) -> None:
        raise WheelDownloadError("no network")

    monkeypatch.setattr(index, "files", refuse)
    with pytest.raises(WheelDownloadError, match="no network"):
        versions(index, ["app"])


def test_a_library_of_the_distribution_is_named_where_that_is_all_that_lacks(
    tmp_path: Path,
) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64", members=NEEDS_MORE)
    (nearest,) = failure(index, ["app"]).problem.nearest
    assert nearest.kind == "library"
    assert nearest.message.startswith("with its packages for libnowhere.so.7 installed, app 1")


def test_the_source_of_a_release_that_was_asked_for_is_named(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    for version in ("1.0", "2.0"):
        index.add("app_one", version, tag="cp311-cp311-manylinux_2_40_x86_64")
        with tarfile.open(tmp_path / f"app_one-{version}.tar.gz", "w:gz"):
            pass
    nearest = failure(index, ["App.One<2"]).problem.nearest
    assert [each.version for each in nearest if each.kind == "source"] == ["1.0"]


def test_reasons_are_of_the_releases_that_were_asked_for(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path)
    index.add("app", "2.0", tag="cp312-cp312-manylinux_2_17_x86_64")
    index.add("app", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    index.add("app", "0.5", tag="cp312-cp312-manylinux_2_17_x86_64")
    index.add("tool", "1.0", "app")
    problem = failure(index, ["tool", "app>=2"]).problem
    assert [each.versions for each in problem.reasons] == [("2.0",)]
