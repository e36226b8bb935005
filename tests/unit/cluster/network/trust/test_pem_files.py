from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from support.cluster.edges import RECEIVER, SENDER, credentials
from support.cluster.pem_files import read_pem_files

from potluck.cluster.network.trust.pem_files import write_pem_files


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "tls"
    paths = write_pem_files(credentials(SENDER), directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = {paths.authority, paths.certificate, paths.key}
    assert set(directory.iterdir()) == files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_an_open_directory_is_closed_and_old_files_are_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    directory.mkdir(mode=0o755)
    key = write_pem_files(credentials(RECEIVER), directory).key
    key.chmod(0o644)
    write_pem_files(credentials(SENDER), directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    read = read_pem_files(directory, SENDER)
    assert read.removed_path == str(directory / "removed")
    assert replace(read, removed_path=None) == credentials(SENDER)


def test_a_link_in_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "tls", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    directory.mkdir()
    (directory / "node-key.pem").symlink_to(elsewhere)
    paths = write_pem_files(credentials(SENDER), directory)
    assert elsewhere.read_text() == "mine"
    assert not paths.key.is_symlink()
