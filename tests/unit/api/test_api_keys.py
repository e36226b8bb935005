"""API keys: what is stored, what is accepted, what is refused."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from potluck.api.keys import ApiKeys, Role, create_api_key
from potluck.errors import ParameterError, UsageError


def name_of(keys: ApiKeys, presented: str) -> str | None:
    key = keys.find(presented)
    return None if key is None else key.name


def test_a_key_is_recognised_by_name_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = create_api_key(path, "laptop")
    second = create_api_key(path, "phone")
    keys = ApiKeys.load(path)
    assert name_of(keys, first) == "laptop"
    assert name_of(keys, second) == "phone"
    for wrong in ("", first[:-1], first + "x", "laptop", "\udcff", "x" * 100_000):
        assert name_of(keys, wrong) is None


def test_the_file_holds_no_key_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = create_api_key(path, "laptop")
    text = path.read_text()
    assert key not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    name, hashed = text.split()
    method, salt, digest = hashed.split(":")
    assert (name, method) == ("laptop", "sha256")
    assert hashlib.sha256(bytes.fromhex(salt) + key.encode()).hexdigest() == digest


def test_a_file_written_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    salt = bytes(range(16))
    digest = hashlib.sha256(salt + b"pk-mine").hexdigest()
    path.write_text(f"# people\n\n  me sha256:{salt.hex()}:{digest}  ")
    assert name_of(ApiKeys.load(path), "pk-mine") == "me"
    other = create_api_key(path, "you")  # the last line had no end
    assert name_of(ApiKeys.load(path), "pk-mine") == "me"
    assert name_of(ApiKeys.load(path), other) == "you"


def test_a_key_has_a_role(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    made = {
        role: create_api_key(path, name, role)
        for name, role in (("laptop", Role.USE), ("desk", Role.ADMIN))
    }
    keys = ApiKeys.load(path)
    for role, key in made.items():
        found = keys.find(key)
        assert found is not None
        assert found.role is role
    assert [line.endswith(" admin") for line in path.read_text().splitlines()] == [False, True]
    path.write_text(path.read_text().replace(" admin", " owner"))
    with pytest.raises(UsageError, match="line 2 is not a hashed key"):
        ApiKeys.load(path)


def test_names_are_plain_and_unique(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    create_api_key(path, "laptop")
    for name in ("laptop", "", "a b", "a\nb", "x" * 65):
        with pytest.raises(ParameterError):
            create_api_key(path, name)
    assert len(path.read_text().splitlines()) == 1


def test_broken_files_are_refused_without_showing_what_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(UsageError, match="cannot read"):
        ApiKeys.load(path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="no API key"):
        ApiKeys.load(path)
    path.write_text("pk-a-key-in-the-clear\n")
    with pytest.raises(UsageError, match="line 1 is not a hashed key") as caught:
        ApiKeys.load(path)
    assert "in-the-clear" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a text file"):
        ApiKeys.load(path)
    with pytest.raises(UsageError, match="cannot write"):
        create_api_key(tmp_path / "no" / "such", "x")
