"""What a node answers to a claim."""

from __future__ import annotations

import pytest
from support.cluster.calls import A, B, C, a_record

from potluck.cluster.agent import records as module
from potluck.cluster.agent.records import Promises
from potluck.cluster.wire.calls import Claim
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState

D = DeploymentId("d")


def epoch(number: int, node: NodeId = A) -> Epoch:
    return Epoch(number=number, coordinator=node)


def claim(number: int, node: NodeId, *, known: Epoch) -> Claim:
    return Claim(deployment=D, epoch=epoch(number, node), known=known)


LOST = a_record(3, A)
"""A record whose coordinator is lost."""


def test_a_node_promises_what_it_has_no_objection_to() -> None:
    promises, answer = Promises().answer(
        claim(4, B, known=LOST.epoch), LOST, sees_coordinator=False
    )
    assert answer.is_granted
    assert promises.highest[D] == epoch(4, B)


def test_of_what_it_never_heard_of_too() -> None:
    _, answer = Promises().answer(claim(1, B, known=epoch(0, B)), None, sees_coordinator=False)
    assert answer.is_granted


@pytest.mark.parametrize(
    ("number", "node", "is_granted"),
    [(3, B, False), (4, A, False), (4, B, True), (4, C, True), (5, A, True)],
)
def test_a_promise_excludes_what_is_lower(number: int, node: NodeId, is_granted: bool) -> None:
    """Epochs are ordered by number, then by node; the same claim may be made again."""
    first = claim(4, B, known=LOST.epoch)
    promises, _ = Promises().answer(first, LOST, sees_coordinator=False)
    after, answer = promises.answer(
        claim(number, node, known=LOST.epoch), LOST, sees_coordinator=False
    )
    assert answer.is_granted is is_granted
    assert answer.highest == max(epoch(4, B), epoch(number, node))
    if not is_granted:
        assert after is promises
        assert "was seen or promised" in answer.reason


def test_an_epoch_that_was_taken_is_not_promised_again() -> None:
    """Not even to its coordinator: it would be two plans at one epoch."""
    again = claim(4, B, known=LOST.epoch)
    promises, _ = Promises().answer(again, LOST, sees_coordinator=False)
    taken = promises.seen(D, epoch(4, B))
    _, answer = taken.answer(again, LOST, sees_coordinator=False)
    assert not answer.is_granted
    assert answer.highest == epoch(4, B)
    higher, answer = taken.answer(claim(5, B, known=LOST.epoch), LOST, sees_coordinator=False)
    assert answer.is_granted
    _, answer = higher.answer(claim(5, B, known=LOST.epoch), LOST, sees_coordinator=False)
    assert answer.is_granted, "of the next one nothing is known but the promise"


def test_a_late_record_does_not_lower_a_promise() -> None:
    promises, _ = Promises().answer(claim(9, B, known=LOST.epoch), LOST, sees_coordinator=False)
    assert promises.seen(D, epoch(4, C)) is promises


def test_a_claimant_that_goes_by_an_older_record_is_given_the_later_one() -> None:
    later = a_record(5, C)
    _, answer = Promises().answer(claim(9, B, known=epoch(3)), later, sees_coordinator=False)
    assert not answer.is_granted
    assert answer.record is later
    assert answer.highest == later.epoch


def test_while_the_coordinator_is_seen_only_itself_or_its_successor_may_go_on() -> None:
    def is_granted(record: DeploymentRecord, node: NodeId) -> bool:
        _, answer = Promises().answer(
            claim(9, node, known=record.epoch), record, sees_coordinator=True
        )
        return answer.is_granted

    assert is_granted(LOST, A)
    assert not is_granted(LOST, B)
    leaving = LOST.with_status(successor=B)
    assert is_granted(leaving, B)
    assert not is_granted(leaving, C)


def test_nobody_goes_on_with_what_was_removed() -> None:
    removed = a_record(3, A, state=DeploymentState.REMOVED)
    _, answer = Promises().answer(claim(9, A, known=epoch(8)), removed, sees_coordinator=False)
    assert not answer.is_granted
    assert answer.record is removed


def test_promises_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROMISES", 3)
    promises = Promises()
    for number in range(10):
        promises = promises.seen(DeploymentId(str(number)), epoch(1))
    assert sorted(promises.highest) == ["7", "8", "9"]
    assert promises.taken == {"7", "8", "9"}
