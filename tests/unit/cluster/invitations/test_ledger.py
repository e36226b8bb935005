from __future__ import annotations

from pathlib import Path

import pytest

from potluck.cluster.invitations.invitation import token_digest
from potluck.cluster.invitations.ledger import (
    MOST_USES,
    Ledger,
    LedgerFile,
    parse_duration,
)
from potluck.errors import ParameterError, PotluckError, UsageError

NOW = 1_700_000_000.0
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def made(num_uses: int = 1, seconds: float = 60.0) -> tuple[Ledger, str]:
    ledger, invitation_id, token = Ledger().invite(NOW, num_uses=num_uses, seconds=seconds)
    (known,) = ledger.known(NOW)
    assert known.token_sha256 == token_digest(token)
    return ledger, invitation_id


def admit(ledger: Ledger, invitation_id: str, key: bytes, now: float = NOW) -> tuple[Ledger, str]:
    return ledger.admit(invitation_id, key, now, name="board", host="10.0.0.9")


def test_an_invitation_is_used_up() -> None:
    ledger, invitation = made(num_uses=2)
    ledger, first = admit(ledger, invitation, KEY)
    assert ledger.open_ones(NOW)
    ledger, second = admit(ledger, invitation, OTHER_KEY)
    assert first != second
    assert not ledger.open_ones(NOW)
    (known,) = ledger.known(NOW)
    assert known.closed
    assert known.is_used_up
    with pytest.raises(PotluckError, match="used up"):
        admit(ledger, invitation, b"x" * 32)


def test_who_asks_again_with_the_same_key_uses_nothing() -> None:
    ledger, invitation = made()
    ledger, node = admit(ledger, invitation, KEY)
    again, same = admit(ledger, invitation, KEY)
    assert same == node
    assert again == ledger
    with pytest.raises(PotluckError, match="expired"):
        admit(ledger, invitation, KEY, NOW + 61)
    with pytest.raises(PotluckError, match="withdrawn"):
        admit(ledger.withdraw(invitation), invitation, KEY)


def test_an_invitation_expires_and_is_closed_when_the_clock_is_set_back() -> None:
    ledger, invitation = made(seconds=60)
    assert ledger.open_ones(NOW + 59.9)
    assert not ledger.open_ones(NOW + 60)
    assert ledger.open_ones(NOW - 60)  # as time servers do
    assert not ledger.open_ones(0.0)  # a board that starts in 1970
    with pytest.raises(PotluckError, match="clock"):
        admit(ledger, invitation, KEY, 0.0)


def test_one_of_another_ledger_is_unknown() -> None:
    ledger, _ = made()
    with pytest.raises(PotluckError, match="no such invitation"):
        admit(ledger, "0000", KEY)
    with pytest.raises(UsageError, match="no invitation"):
        ledger.withdraw("0000")


@pytest.mark.parametrize(
    ("num_uses", "seconds"), [(0, 60), (MOST_USES + 1, 60), (1, 0), (1, 1e9), (1, float("nan"))]
)
def test_numbers_are_bounded(num_uses: int, seconds: float) -> None:
    with pytest.raises(ParameterError):
        Ledger().invite(NOW, num_uses=num_uses, seconds=seconds)


def test_so_many_are_open_at_a_time_and_old_ones_are_forgotten() -> None:
    ledger = Ledger()
    for _ in range(64):
        ledger, _, _ = ledger.invite(NOW, num_uses=1, seconds=60)
    with pytest.raises(UsageError):
        ledger.invite(NOW, num_uses=1, seconds=60)
    ledger, _, _ = ledger.invite(NOW + 100 * 86_400, num_uses=1, seconds=60)
    assert len(ledger.invitations) == 1


def test_a_ledger_is_kept(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "invitations.json")
    assert file.read() == Ledger()
    ledger, invitation = made()
    ledger, _ = admit(ledger, invitation, KEY)
    file.write(ledger)
    assert file.read() == ledger
    assert (tmp_path / "invitations.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "invitations.json").write_text("[]")
    with pytest.raises(PotluckError, match="does not hold"):
        file.read()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h", 3600), ("2d", 172_800), ("1.5 h", 5400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1w", "1h30m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ParameterError):
        parse_duration(text)
