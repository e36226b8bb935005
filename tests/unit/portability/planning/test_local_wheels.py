"""Wheels in files stand before an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.portability.folder_index import PYTHON, FolderIndex, a_host
from support.portability.wheel_bytes import write_wheel

from potluck.errors import UsageError, WheelDownloadError
from potluck.portability.planning.index import WithLocalWheels
from potluck.portability.planning.planner import Planner


def test_a_project_with_local_wheels_has_no_others(tmp_path: Path) -> None:
    index = FolderIndex(tmp_path / "index")
    index.folder.mkdir()
    index.add("app", "9.0")
    index.add("lib", "1.0")
    wheels = [
        write_wheel(tmp_path, name="app", tag=f"py3-none-manylinux_2_17_{machine}", metadata=more)
        for machine, more in (("x86_64", "Requires-Dist: lib\n"), ("aarch64", ""))
    ]
    local = WithLocalWheels(index, wheels)
    assert local.projects == ("app",)
    hosts = [a_host("pc"), a_host("board", machine="aarch64")]
    planner = Planner(local, hosts, default_python=PYTHON)
    plan = planner.plan(["app"])
    assert plan.shared is not None
    assert [each.versions() for each in plan.shared] == [
        {"app": "1.0", "lib": "1.0"},
        {"app": "1.0"},
    ]
    (app,) = plan.own[1].wheels
    assert planner.fetch(app, tmp_path / "kept").read_bytes() == wheels[1].read_bytes()
    assert index.queried_projects == ["lib"]


def test_a_local_wheel_above_the_bound_is_not_copied(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, name="app")
    local = WithLocalWheels(FolderIndex(tmp_path), [wheel])
    (file,) = local.files("app")
    num_bytes = wheel.stat().st_size
    copy = tmp_path / "copy"
    with pytest.raises(WheelDownloadError, match=f"more than {num_bytes - 1} bytes"):
        local.fetch(file, copy, most_bytes=num_bytes - 1)
    assert not copy.exists()
    local.fetch(file, copy, most_bytes=num_bytes)
    assert copy.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("name", ["app.whl", "app-1.0.tar.gz", "missing-1.0-py3-none-any.whl"])
def test_what_is_no_wheel(tmp_path: Path, name: str) -> None:
    if not name.startswith("missing"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match="not a wheel"):
        WithLocalWheels(FolderIndex(tmp_path), [tmp_path / name])
