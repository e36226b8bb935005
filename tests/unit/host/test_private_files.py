"""Private files are written whole or not at all, and modes don't depend on the umask."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.host.private_files import (
    create_file,
    folder_problem,
    make_private_folder,
    parent_problem,
    remove_drafts,
    replace_file,
)
from potluck.host.system import read_regular_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o177, 0o777], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.usefixtures("_umask")
def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_private_folder(folder)
    assert (mode(tmp_path / "a"), mode(folder)) == (0o700, 0o700)
    replace_file(folder / "replaced", b"1")
    assert create_file(folder / "made", b"2")
    assert (mode(folder / "replaced"), mode(folder / "made")) == (0o600, 0o600)
    folder.chmod(0o755)
    make_private_folder(folder)
    assert mode(folder) == 0o700


@pytest.mark.parametrize("write", [replace_file, create_file])
def test_what_cannot_be_written_leaves_everything_as_it_was(
    tmp_path: Path, write: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for name in ("file", "other"):
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / name, b"after")  # type: ignore[operator]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_a_file_is_made_once(tmp_path: Path) -> None:
    assert create_file(tmp_path / "file", b"first")
    assert not create_file(tmp_path / "file", b"second")
    assert read_regular_file(tmp_path / "file", 3) == b"fir"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert not (tmp_path / "file").is_symlink()


def test_drafts_of_a_crash_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".node-id.00ff.draft").touch()
    (tmp_path / ".profile").touch()
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".profile"]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular_file(tmp_path / "pipe", 10)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o644)
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError):
            make_private_folder(path)
    assert mode(tmp_path / "file") == 0o644


@pytest.mark.parametrize(
    ("bits", "of_folder", "of_parent"),
    [
        (0o700, None, None),
        (0o755, None, None),
        (0o777, "everybody", "everybody"),
        (0o1777, "everybody", None),
        (0o702, "everybody", "everybody"),
    ],
)
def test_folders_that_everybody_can_write_to(
    tmp_path: Path, bits: int, of_folder: str | None, of_parent: str | None
) -> None:
    tmp_path.chmod(bits)
    for problem, who in ((folder_problem, of_folder), (parent_problem, of_parent)):
        found = problem(tmp_path)
        assert found == (None if who is None else f"can be written to by {who}")


def test_a_group_may_write_if_nobody_else_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o770)
    user = pwd.getpwuid(os.geteuid())
    others: list[str] = []

    def group(gid: int, name: str = user.pw_name) -> object:
        return grp.struct_group((name, "x", gid, others))

    monkeypatch.setattr(grp, "getgrgid", group)
    assert folder_problem(tmp_path) is None
    others.append("mallory")
    assert folder_problem(tmp_path) == f"can be written to by its group ({user.pw_name})"
    others.clear()
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group(gid, "staff"))
    assert folder_problem(tmp_path) == "can be written to by its group (staff)"


def test_folders_of_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: own + 12345)
    assert folder_problem(tmp_path) is not None
    # Root may be a parent's owner, and a folder's only if it is this user.
    assert (parent_problem(tmp_path) is None) == (own == 0)
    assert parent_problem(Path("/")) is None
