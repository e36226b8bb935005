"""Constraints files: one where markers tell hosts apart, or else one for each host."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement
from support.portability.folder_index import PYTHON, a_host

from potluck.portability.hosts.host import Host
from potluck.portability.planning.index import IndexFile
from potluck.portability.planning.plan import HostPlan, PlannedWheel, constraints_files
from potluck.portability.planning.target import Target

OUTPUT = Path("folder/constraints.txt")


def files(*plans: tuple[Host, dict[str, str]]) -> dict[str, list[str]]:
    targets = [Target(host, PYTHON) for host, _ in plans]
    found = constraints_files(
        [host_plan(host.name, versions) for host, versions in plans], targets, OUTPUT
    )
    return {str(path): text.splitlines() for path, text in found.items()}


def host_plan(host: str, versions: dict[str, str]) -> HostPlan:
    return HostPlan(
        host=host,
        wheels=tuple(
            PlannedWheel(name=name, version=version, file=IndexFile(filename="f", url="u"))
            for name, version in versions.items()
        ),
    )


def test_one_version_for_all_needs_no_markers() -> None:
    found = files((a_host("a"), {"app": "1.0"}), (a_host("b", python=(3, 9)), {"app": "1.0"}))
    assert found == {str(OUTPUT): ["# For a, b", "app==1.0"]}


def test_markers_name_what_tells_hosts_apart() -> None:
    found = files(
        (a_host("a"), {"app": "2.0", "lib": "1.0"}),
        (a_host("b", python=(3, 9)), {"app": "1.0", "lib": "1.0"}),
        (a_host("c", machine="aarch64"), {"app": "1.5"}),
    )
    lines = found[str(OUTPUT)]
    assert lines[0] == "# For a, b, c"
    expected = {
        ("x86_64", "3.11"): "==2.0",
        ("x86_64", "3.9"): "==1.0",
        ("aarch64", "3.11"): "==1.5",
    }
    app = [Requirement(each) for each in lines if each.startswith("app")]
    for (machine, python), version in expected.items():
        environment = {"platform_machine": machine, "python_version": python}
        (holding,) = (each for each in app if each.marker and each.marker.evaluate(environment))
        assert str(holding.specifier) == version
    assert "lib==1.0" in lines


def test_hosts_that_markers_cannot_tell_apart_have_files_of_their_own() -> None:
    found = files((a_host("a"), {"app": "2.0"}), (a_host("b", glibc=28), {"app": "1.0"}))
    assert found == {
        "folder/constraints-a.txt": ["# For a", "app==2.0"],
        "folder/constraints-b.txt": ["# For b", "app==1.0"],
    }
