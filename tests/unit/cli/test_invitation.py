"""The secret is said to a person, and not to a journal."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest

from potluck.cli.up import invitation, is_shown
from potluck.cluster.network.trust.secret import Secret

SECRET = Secret(text="potluck-0123")
FILE = Path("/state/secret")
lines = partial(invitation, "h:1", SECRET)
FIRST = "to set up another machine, run potluck invite in another terminal"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_shown_on_a_terminal_or_on_request() -> None:
    assert is_shown(Screen(), is_requested=False)
    assert is_shown(io.StringIO(), is_requested=True)
    assert not is_shown(io.StringIO(), is_requested=False)
    assert not is_shown(None, is_requested=False)


@pytest.mark.parametrize("multicast", [False, True])
def test_the_line_to_type_has_the_secret_or_the_file_that_holds_it(multicast: bool) -> None:
    shown = list(lines(is_secret_shown=True, secret_file=FILE, multicast=multicast))
    assert shown[:3] == [
        FIRST,
        "where Potluck is installed, run:",
        "  POTLUCK_SECRET=potluck-0123 potluck up --join h:1",
    ]
    assert ("  POTLUCK_SECRET=potluck-0123 potluck up --lan" in shown) == multicast
    assert str(FILE) not in "".join(shown)

    hidden = list(lines(is_secret_shown=False, secret_file=FILE, multicast=multicast))
    assert hidden[:3] == [
        FIRST,
        "where Potluck is installed, with the same secret, run:",
        "  potluck up --join h:1",
    ]
    assert ("  potluck up --lan" in hidden) == multicast
    assert hidden[-1] == "the secret is in /state/secret (--show-secret prints it here)"


def test_a_node_that_was_given_a_secret_names_no_file() -> None:
    assert list(lines(is_secret_shown=False, secret_file=None, multicast=False)) == [
        FIRST,
        "where Potluck is installed, with the same secret, run:",
        "  potluck up --join h:1",
    ]


def test_a_node_that_was_invited_cannot_invite() -> None:
    shown = invitation("h:1", None, is_secret_shown=True, secret_file=None, multicast=True)
    assert list(shown) == []
