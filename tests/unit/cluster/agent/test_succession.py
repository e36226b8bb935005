"""Whose turn it is to take over."""

from __future__ import annotations

from support.cluster.calls import A, B, C

from potluck.cluster.agent.takeover import AT_WORK_SECONDS, TURN_SECONDS, Decision, Vacancy
from potluck.cluster.wire.calls import CoordinatorView, TakeoverReadiness
from potluck.types.cluster import NodeId

D = NodeId("d" * 16)


def says(
    readiness: TakeoverReadiness = TakeoverReadiness.CANDIDATE, *, sees: bool = False
) -> CoordinatorView:
    return CoordinatorView(sees_coordinator=sees, readiness=readiness)


def test_the_first_candidate_goes_at_once_and_others_after_those_before_them() -> None:
    _, decision = Vacancy().decide(A, {B: says(), C: says()}, 100.0)
    assert decision is Decision.TAKE_OVER
    others = {A: says(), B: says(), D: says()}
    vacancy, decision = Vacancy().decide(C, others, 100.0)
    assert decision is Decision.WAIT
    _, decision = vacancy.decide(C, others, 100.0 + 2 * TURN_SECONDS - 0.01)
    assert decision is Decision.WAIT
    _, decision = vacancy.decide(C, others, 100.0 + 2 * TURN_SECONDS)
    assert decision is Decision.TAKE_OVER


def test_nobody_waits_for_those_that_cannot_or_do_not_answer() -> None:
    _, decision = Vacancy().decide(C, {A: says(TakeoverReadiness.UNABLE), D: says()}, 100.0)
    assert decision is Decision.TAKE_OVER


def test_one_that_is_at_it_is_left_alone_for_a_while_whatever_its_id() -> None:
    at_work = {B: says(TakeoverReadiness.AT_WORK)}
    vacancy, decision = Vacancy().decide(A, at_work, 100.0)
    assert decision is Decision.WAIT
    _, decision = vacancy.decide(A, at_work, 100.0 + AT_WORK_SECONDS - 0.01)
    assert decision is Decision.WAIT
    _, decision = vacancy.decide(A, at_work, 100.0 + AT_WORK_SECONDS)
    assert decision is Decision.TAKE_OVER


def test_a_coordinator_that_anyone_sees_is_not_lost_and_turns_begin_anew_after_it() -> None:
    others = {A: says(), C: says()}
    vacancy, _ = Vacancy().decide(B, others, 100.0)
    vacancy, decision = vacancy.decide(B, {**others, C: says(sees=True)}, 200.0)
    assert decision is Decision.NOT_LOST
    vacancy, decision = vacancy.decide(B, others, 201.0)
    assert decision is Decision.WAIT
    _, decision = vacancy.decide(B, others, 201.0 + TURN_SECONDS)
    assert decision is Decision.TAKE_OVER


def test_one_that_is_alone_goes_at_once() -> None:
    _, decision = Vacancy().decide(C, {}, 100.0)
    assert decision is Decision.TAKE_OVER
