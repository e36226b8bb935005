"""What pip takes on old systems is told from an index; and what it takes of ours is not old."""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.version import Version

from tools.platforms.closure import closure
from tools.platforms.page import floor, page
from tools.platforms.release import PLATFORMS, Platform, ReleaseFile, candidates, choose
from tools.platforms.survey import read_survey, survey

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tools" / "platforms" / "platforms.json"
OLDEST = datetime.timedelta(days=730)
"""How much older than the newest version that is which an old system gets."""

X86_311 = Platform(machine="x86_64", python=(3, 11))
ARM_311 = Platform(machine="aarch64", python=(3, 11))


def file(version: str, tags: str = "", python: str = "") -> ReleaseFile:
    """A wheel with these tags; without any, an sdist."""
    return ReleaseFile(
        url=f"{version}/{tags}",
        version=Version(version),
        tags=parse_tag(tags) if tags else frozenset(),
        requires_python=SpecifierSet(python),
        uploaded="2026-01-02",
    )


def chosen(
    files: tuple[ReleaseFile, ...], platform: Platform, glibc: tuple[int, int], allowed: str = ""
) -> str:
    found = choose(candidates(files, platform), SpecifierSet(allowed), glibc)
    return "nothing" if found is None else f"{found.version}{'' if found.is_wheel else ' built'}"


@pytest.mark.parametrize(
    ("tags", "platform", "glibc"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", X86_311, (2, 28)),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", X86_311, (2, 17)),
        ("cp39-abi3-manylinux2014_aarch64", ARM_311, (2, 17)),
        ("cp311-cp311-manylinux1_x86_64", X86_311, (2, 5)),
        ("py3-none-manylinux2010_x86_64", X86_311, (2, 12)),
        ("py3-none-any", ARM_311, (0, 0)),
        ("cp311-cp311-manylinux_2_28_x86_64", ARM_311, None),
        ("cp312-abi3-manylinux_2_28_x86_64", X86_311, None),
        ("cp310-cp310-manylinux_2_28_x86_64", X86_311, None),
        ("cp311-cp311t-manylinux_2_28_x86_64", X86_311, None),
        ("cp311-cp311-musllinux_1_2_x86_64", X86_311, None),
        ("cp311-cp311-linux_x86_64", X86_311, None),
    ],
)
def test_a_tag_says_the_oldest_glibc(
    tags: str, platform: Platform, glibc: tuple[int, int] | None
) -> None:
    found = candidates([file("1.0", tags)], platform)
    assert [each.glibc for each in found] == ([] if glibc is None else [glibc])


def test_pip_falls_back_in_silence() -> None:
    files = (
        file("2.0", "cp311-cp311-manylinux_2_28_x86_64"),
        file("1.5", "cp311-cp311-manylinux_2_17_x86_64"),
        file("0.1", "py3-none-any"),
    )
    assert chosen(files, X86_311, (2, 28)) == "2.0"
    assert chosen(files, X86_311, (2, 27)) == "1.5"
    assert chosen(files, X86_311, (2, 12)) == "0.1"
    assert chosen(files, ARM_311, (2, 39)) == "0.1"
    assert chosen(files, X86_311, (2, 27), allowed=">=2") == "nothing"


def test_pip_builds_the_newest_before_it_takes_an_older_wheel() -> None:
    files = (
        file("2.0", "cp311-cp311-manylinux_2_28_x86_64"),
        file("2.0"),
        file("1.5", "cp311-cp311-manylinux_2_17_x86_64"),
    )
    assert chosen(files, X86_311, (2, 28)) == "2.0"
    assert chosen(files, X86_311, (2, 17)) == "2.0 built"


def test_pip_takes_a_pre_release_where_there_is_nothing_else() -> None:
    files = (
        file("1.0", "cp311-cp311-manylinux_2_28_aarch64"),
        file("0.9rc1", "cp311-cp311-manylinux_2_17_aarch64"),
        file("3.0a1", "cp311-cp311-manylinux_2_28_aarch64"),
    )
    assert chosen(files, ARM_311, (2, 28)) == "1.0"
    assert chosen(files, ARM_311, (2, 17)) == "0.9rc1"
    assert chosen(files, ARM_311, (2, 17), allowed=">=1.0") == "nothing"


def test_what_wants_another_python_is_left_out() -> None:
    files = (file("2.0", "py3-none-any", ">=3.12"), file("1.0", "py3-none-any", ">=3.8"))
    assert chosen(files, X86_311, (2, 36)) == "1.0"


class PlayedIndex:
    """Projects with one wheel for any system per version."""

    def __init__(self, projects: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
        self._projects = projects

    def files(self, project: str) -> tuple[ReleaseFile, ...]:
        return tuple(
            ReleaseFile(
                url=f"{project}/{version}",
                version=Version(version),
                tags=parse_tag("py3-none-any"),
                requires_python=SpecifierSet(),
                uploaded="2026-01-02",
            )
            for version in self._projects[project]
        )

    def requirements(self, wheel: ReleaseFile) -> tuple[Requirement, ...]:
        project, version = wheel.url.split("/")
        return tuple(map(Requirement, self._projects[project][version]))


INDEX = PlayedIndex(
    {
        "app": {"1.0": ("lib[fast]>=2", "old; python_version < '3.12'", "tool<2")},
        "lib": {"2.0": (), "2.1": ("speed; extra == 'fast'", "docs; extra == 'docs'")},
        "speed": {"0.3": ("tool==1.1; platform_machine == 'aarch64'",)},
        "tool": {"1.1": (), "1.2": (), "2.0": ("gone",)},
        "old": {"5.0": ()},
    }
)


def versions(platform: Platform) -> dict[str, str]:
    found = closure([Requirement("app")], platform, INDEX)
    return {project.name: str(project.newest.version) for project in found}


def test_the_closure_follows_extras_markers_and_restrictions() -> None:
    common = {"app": "1.0", "lib": "2.1", "speed": "0.3"}
    assert versions(X86_311) == {**common, "old": "5.0", "tool": "1.2"}
    assert versions(Platform(machine="aarch64", python=(3, 12))) == {**common, "tool": "1.1"}


def test_a_survey_comes_back_from_json() -> None:
    made = survey(["app"], INDEX, "2026-11-22")
    assert read_survey(made.to_json()) == made
    assert [(each.machine, each.python) for each in made.platforms] == [
        (platform.machine, platform.python_version) for platform in PLATFORMS
    ]
    assert floor(made.platforms[0]) == ("2.17", ("potluck",))


def test_the_survey_is_of_our_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = json.loads(DATA.read_text(encoding="utf-8"))["requirements"]
    assert requirements == project["dependencies"], "python -m tools.platforms"


def test_the_page_is_made_from_the_survey() -> None:
    written = (ROOT / "docs" / "reference" / "platforms.md").read_text(encoding="utf-8")
    assert written == page(read_survey(DATA.read_text(encoding="utf-8")))


def test_no_old_system_gets_an_old_version_or_a_pre_release() -> None:
    found = read_survey(DATA.read_text(encoding="utf-8"))
    for platform in found.platforms:
        for project in platform.projects:
            newest = datetime.date.fromisoformat(project.takes.uploaded)
            for older in project.older:
                for taken in (older.takes, older.takes_wheel):
                    if taken is None:
                        continue
                    where = f"{project.name} on {platform.machine}, Python {platform.python}"
                    assert not Version(taken.version).is_prerelease, (where, older)
                    age = newest - datetime.date.fromisoformat(taken.uploaded)
                    assert age <= OLDEST, (where, older)
