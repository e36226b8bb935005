"""A state directory is its owner's alone, heals what can be healed, and says what cannot."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.network.trust.authority import derive_authority, issue_credentials
from potluck.errors import PotluckError, UsageError


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777], ids=oct)
def test_all_that_is_made_is_the_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        state = StateDirectory(tmp_path / "new" / "state")
        with state.locked():
            node_id = state.node_id()
            authority = derive_authority(state.own_secret())
            state.write_credentials(issue_credentials(authority, node_id))
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*")}
    assert len(found) == 9
    assert found == {path: 0o700 if path.is_dir() else 0o600 for path in found}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize("left", [b"", b"\n", b"\0" * 17])
def test_an_empty_node_id_is_filled_again(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "node-id").write_bytes(left)
    state = StateDirectory(tmp_path)
    node_id = state.node_id()
    assert len(node_id) == 16
    assert state.node_id() == node_id


def test_a_new_node_id_takes_the_old_ones_place(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    assert len({state.node_id(), state.renew_node_id()}) == 2
    assert (tmp_path / "node-id").read_text() == state.node_id() + "\n"


@pytest.mark.parametrize("name", ["node-id", "secret"])
@pytest.mark.parametrize("kind", ["garbage", "pipe", "folder"])
def test_what_is_in_a_files_place_is_named(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "garbage":
        path.write_bytes(b"\xffgarbage\n")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    state = StateDirectory(tmp_path)
    with pytest.raises(PotluckError) as caught:
        state.node_id() if name == "node-id" else state.own_secret()
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_an_empty_secret_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    with pytest.raises(UsageError, match="does not contain a valid secret") as caught:
        StateDirectory(tmp_path).own_secret()
    assert "delete it" in caught.value.hint


@pytest.mark.parametrize("which", ["", "workers", "tls"])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, which: str) -> None:
    state = StateDirectory(tmp_path / "state")
    with state.locked():
        pass
    (state.path / which).chmod(0o777)
    with pytest.raises(UsageError, match="can be written to by everybody"), state.locked():
        pass
    assert stat.S_IMODE((state.path / which).stat().st_mode) == 0o777
    (state.path / which).chmod(0o755)
    with state.locked():
        pass


def test_a_parent_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    state = StateDirectory(shared / "deep" / "state")
    shared.chmod(0o777)
    with pytest.raises(UsageError, match=rf"{shared} can be written"), state.locked():
        pass
    shared.chmod(0o1777)
    with state.locked():
        pass


def test_a_link_in_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    """Who can write there may make it lead elsewhere."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "state").symlink_to(tmp_path / "private")
    (tmp_path / "shared").chmod(0o777)
    state = StateDirectory(tmp_path / "shared" / "state")
    with pytest.raises(UsageError, match="shared can be written"), state.locked():
        pass


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workers").symlink_to("/tmp")
    with pytest.raises(UsageError, match="symbolic link"), StateDirectory(tmp_path).locked():
        pass


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's agent finds it, above all."""
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    state = StateDirectory(tmp_path)
    with pytest.raises(UsageError, match="belongs to another user"), state.locked():
        pass


def test_drafts_of_a_crash_are_gone(tmp_path: Path) -> None:
    (tmp_path / ".node-id.00.draft").touch()
    with StateDirectory(tmp_path).locked():
        assert not (tmp_path / ".node-id.00.draft").exists()


def test_a_path_that_is_not_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(UsageError, match="not UTF-8"), state.locked():
        pass
    assert list(tmp_path.iterdir()) == []
