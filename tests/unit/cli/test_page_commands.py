"""``potluck dashboard`` and ``potluck api-key``."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.api.keys import ApiKeys, Role
from potluck.cli.api_key import api_key
from potluck.cli.dashboard import page_address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://127.0.0.1:7334", "http://127.0.0.1:7334"),
        ("https://10.0.0.5:80", "https://10.0.0.5:80"),
        ("http://0.0.0.0:7334", "http://127.0.0.1:7334"),
        ("https://[::]:7334", "https://[::1]:7334"),
        ("http://[fd00::1]:7334", "http://[fd00::1]:7334"),
    ],
)
def test_the_address_is_one_that_a_browser_can_open(address: str, shown: str) -> None:
    assert page_address(address) == shown


def test_keys_are_made_with_their_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    api_key(path, "laptop")
    api_key(path, "desk", Role.ADMIN)
    made = capsys.readouterr().out.split()
    found = [ApiKeys.load(path).find(key) for key in made]
    assert [each and (each.name, each.role) for each in found] == [
        ("laptop", Role.USE),
        ("desk", Role.ADMIN),
    ]
