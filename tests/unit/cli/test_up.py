"""What ``potluck up`` says of a cluster that it does not find."""

from __future__ import annotations

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cli.up import note_if_alone
from potluck.types.cluster import NodeId


@pytest.mark.parametrize("others", [frozenset(), frozenset({NodeId("b" * 16)})])
def test_a_node_that_finds_no_other_says_what_to_try(
    others: frozenset[NodeId], capsys: pytest.CaptureFixture[str]
) -> None:
    run_in_virtual_time(note_if_alone(lambda: others))
    assert ("potluck up --join HOST" in capsys.readouterr().err) == (not others)
