"""What follows from which event in the life of a deployment, without anything that happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from potluck.cluster.coordinator.actions import (
    Action,
    Cancel,
    Claim,
    Connect,
    Detach,
    Examine,
    FailDeployment,
    Load,
    MakePlan,
    MoveOver,
    Pause,
    ReleaseUnused,
    ReportState,
    Serve,
    UsePlan,
    Vacated,
)
from potluck.cluster.coordinator.events import (
    Claimed,
    ClaimRefused,
    Connected,
    DeploymentStarted,
    Ended,
    Event,
    Failed,
    LeaveRequested,
    Loaded,
    MoveWanted,
    NodeJoined,
    NodeLeft,
    PauseOver,
    Planned,
    StageLost,
    TokenCommitted,
)
from potluck.cluster.coordinator.machine import (
    MINORITY_SECONDS,
    MOST_PAUSE_SECONDS,
    NO_QUORUM_PAUSE_SECONDS,
    OUTBID_PAUSE_SECONDS,
    PAUSE_SECONDS,
    Phase,
    Serving,
    State,
    Transition,
    apply,
)
from potluck.errors import EdgeClosedError, EdgeError, EngineError, PotluckError
from potluck.types.cluster import Epoch, NodeId
from potluck.types.deployment import DeploymentState

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
OWN = A
BROKEN = EngineError("broken")


def epoch(number: int) -> Epoch:
    return Epoch(number=number, coordinator=OWN)


def after(state: State, *events: Event, now: float = 0.0) -> Transition:
    """What the last of the events leads to."""
    following = Transition(state=state)
    for event in events:
        following = apply(following.state, event, now)
    return following


def kinds(following: Transition) -> list[type[Action]]:
    return [type(action) for action in following.actions if not isinstance(action, ReportState)]


def serving(number: int = 1, nodes: frozenset[NodeId] = frozenset({A, B})) -> State:
    return State(
        epoch=epoch(number), attempt=number, serving=Serving(epoch=epoch(number), nodes=nodes)
    )


def planned(state: State, *nodes: NodeId, needs_room: bool = False) -> Planned:
    return Planned(attempt=state.attempt, nodes=frozenset(nodes), needs_room=needs_room)


def lost(number: int = 1, *, is_in_use: bool = False) -> StageLost:
    return StageLost(epoch=epoch(number), error=BROKEN, is_in_use=is_in_use)


def test_an_attempt_goes_from_a_plan_to_serving() -> None:
    following = after(State(epoch=epoch(0), is_first=True), DeploymentStarted())
    assert kinds(following) == [MakePlan]
    following = after(following.state, planned(following.state, A, B))
    assert following.actions == (Claim(attempt=1, above=epoch(0), may_be_alone=False),)
    following = after(following.state, Claimed(attempt=1, epoch=epoch(1)))
    assert following.actions[-1] == Load(attempt=1, release_first=True)
    following = after(following.state, Loaded(attempt=1))
    assert following.actions == (Connect(attempt=1),)
    following = after(following.state, Connected(attempt=1))
    assert kinds(following) == [Serve, Vacated]
    state = following.state
    assert state.serving == Serving(epoch=epoch(1), nodes=frozenset({A, B}))
    assert state.phase is Phase.IDLE
    assert not state.is_first


@pytest.mark.parametrize(
    "late",
    [
        Planned(attempt=1, nodes=frozenset({A})),
        Claimed(attempt=1, epoch=epoch(9)),
        ClaimRefused(attempt=1, reason="", is_alone=False, highest=epoch(9)),
        Loaded(attempt=1),
        Connected(attempt=1),
        Failed(attempt=1, error=BROKEN),
        PauseOver(attempt=1),
        StageLost(epoch=epoch(7), error=BROKEN),
        TokenCommitted(epoch=epoch(7)),
    ],
)
@pytest.mark.parametrize("phase", list(Phase))
def test_what_belongs_to_an_earlier_attempt_changes_nothing(late: Event, phase: Phase) -> None:
    state = State(epoch=epoch(3), attempt=2, phase=phase)
    assert after(state, late) == Transition(state=state)


def test_a_lost_stage_is_replaced_at_once() -> None:
    following = after(serving(), lost())
    assert kinds(following) == [Detach, MakePlan]
    assert following.state.serving is None
    assert following.state.num_failures == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            EdgeClosedError(A, "closed by the peer"),
            f"one of its stages stopped (node {A} closed the connection)",
        ),
        (EdgeError(A, "timed out"), f"lost the connection to node {A} (timed out)"),
        (BROKEN, BROKEN.message),
    ],
)
def test_users_are_told_of_connections_and_stages_not_of_edges(
    error: PotluckError, reason: str
) -> None:
    following = after(serving(), StageLost(epoch=epoch(1), error=error))
    (report,) = [
        each
        for each in following.actions
        if isinstance(each, ReportState) and each.state is DeploymentState.DEGRADED
    ]
    assert report.reason == reason


def test_epochs_that_end_before_they_were_of_use_are_backed_off_from() -> None:
    state, pauses = serving(), []
    for _ in range(len(PAUSE_SECONDS) + 1):
        following = after(state, lost(is_in_use=True))
        pauses += [each.seconds for each in following.actions if isinstance(each, Pause)]
        state = replace(serving(), num_failures=following.state.num_failures)
    assert pauses == [*PAUSE_SECONDS[1:], PAUSE_SECONDS[-1]]


def test_epochs_that_were_of_use_are_not_backed_off_from() -> None:
    state = replace(serving(), num_failures=4)
    following = after(state, TokenCommitted(epoch=epoch(1)), lost(is_in_use=True))
    assert kinds(following) == [Detach, MakePlan]
    assert following.state.num_failures == 0


def test_nodes_that_leave_are_no_failure() -> None:
    state = replace(serving(), num_failures=4)
    following = after(state, NodeLeft(node_id=B, error=BROKEN))
    assert kinds(following) == [Detach, MakePlan]
    assert following.state.num_failures == 4


def test_failures_to_load_are_backed_off_from_and_a_node_that_joins_ends_the_pause() -> None:
    state = State(epoch=epoch(3), attempt=3, phase=Phase.LOADING, num_failures=2)
    following = after(state, Failed(attempt=3, error=BROKEN))
    assert Pause(attempt=3, seconds=PAUSE_SECONDS[2]) in following.actions
    assert kinds(after(following.state, NodeJoined())) == [MakePlan]
    assert kinds(after(following.state, NodeJoined(), PauseOver(attempt=3))) == []
    assert after(serving(), NodeJoined()) == Transition(state=serving())


@pytest.mark.parametrize("phase", [Phase.PLANNING, Phase.CONNECTING, Phase.LOADING])
def test_only_loading_in_vain_is_paused_after_for_long(phase: Phase) -> None:
    state = State(epoch=epoch(3), attempt=3, phase=phase, num_failures=9, num_unmet=9)
    seconds = PAUSE_SECONDS[-1] if phase is Phase.LOADING else MOST_PAUSE_SECONDS
    assert after(state, Failed(attempt=3, error=BROKEN)).actions[-1] == Pause(
        attempt=3, seconds=seconds
    )


def test_failures_to_plan_do_not_count_when_loading_fails() -> None:
    state = State(epoch=epoch(3), attempt=3, phase=Phase.LOADING, num_unmet=9)
    following = after(state, Failed(attempt=3, error=BROKEN))
    assert kinds(following) == [Cancel, MakePlan]
    state = replace(state, phase=Phase.CONNECTING, num_failures=1)
    following = after(state, Connected(attempt=3))
    assert (following.state.num_unmet, following.state.num_failures) == (0, 1)


def test_a_node_that_joins_during_an_attempt_is_tried_if_that_fails() -> None:
    state = State(epoch=epoch(3), attempt=3, phase=Phase.PLANNING, num_unmet=3)
    following = after(state, NodeJoined(), Failed(attempt=3, error=BROKEN))
    assert kinds(following) == [Cancel, MakePlan]
    again = after(following.state, Failed(attempt=4, error=BROKEN))
    assert Pause in kinds(again)


def test_a_first_deployment_that_fails_is_over() -> None:
    state = State(epoch=epoch(0), is_first=True, attempt=1, phase=Phase.PLANNING)
    following = after(state, Failed(attempt=1, error=BROKEN))
    assert following.actions == (FailDeployment(error=BROKEN),)
    assert after(following.state, DeploymentStarted()) == Transition(state=following.state)
    again = after(state, Failed(attempt=1, error=BROKEN, is_other_next=True))
    assert MakePlan in kinds(again)


def test_a_side_without_most_voters_waits_before_it_goes_on_alone() -> None:
    state = State(epoch=epoch(1), attempt=1, phase=Phase.CLAIMING)
    refused = ClaimRefused(attempt=1, reason="alone", is_alone=True)
    following = after(state, refused, now=100.0)
    assert following.actions[-1] == Pause(attempt=1, seconds=NO_QUORUM_PAUSE_SECONDS)
    for now, may_be_alone in (
        (100.0 + MINORITY_SECONDS - 0.1, False),
        (100.0 + MINORITY_SECONDS, True),
    ):
        claiming = after(
            following.state,
            PauseOver(attempt=1),
            Planned(attempt=2, nodes=frozenset({A})),
            now=now,
        )
        assert claiming.actions == (Claim(attempt=2, above=epoch(1), may_be_alone=may_be_alone),)


def test_an_outbid_claim_is_made_again_above_the_highest() -> None:
    state = State(epoch=epoch(1), attempt=1, phase=Phase.CLAIMING)
    highest = Epoch(number=5, coordinator=C)
    refused = ClaimRefused(attempt=1, reason="outbid", is_alone=False, highest=highest)
    following = after(state, refused)
    assert following.actions[-1] == Pause(attempt=1, seconds=OUTBID_PAUSE_SECONDS)
    claiming = after(
        following.state, PauseOver(attempt=1), Planned(attempt=2, nodes=frozenset({A}))
    )
    assert claiming.actions == (Claim(attempt=2, above=highest, may_be_alone=False),)
    assert after(state, replace(refused, highest=epoch(0))).state.epoch == epoch(1)


@pytest.mark.parametrize("needs_room", [False, True])
def test_the_stages_in_use_serve_until_those_of_the_next_plan_are_loaded(
    *, needs_room: bool
) -> None:
    following = after(serving(), LeaveRequested(node_id=B))
    assert following.actions == (MakePlan(attempt=2, without=frozenset({B})),)
    state = following.state
    following = after(
        state, planned(state, A, C, needs_room=needs_room), Claimed(attempt=2, epoch=epoch(2))
    )
    assert kinds(following) == ([Detach, Load] if needs_room else [Load])
    assert following.actions[-1] == Load(attempt=2, release_first=needs_room)
    following = after(following.state, Loaded(attempt=2))
    assert kinds(following) == ([Connect] if needs_room else [Detach, Connect])
    following = after(following.state, Connected(attempt=2))
    assert Vacated(nodes=frozenset({B})) in following.actions


def test_a_node_that_cannot_be_replaced_is_told_so_and_serves_on() -> None:
    state = after(serving(), LeaveRequested(node_id=B)).state
    following = after(state, Failed(attempt=2, error=BROKEN))
    assert following.actions == (Vacated(nodes=frozenset({B})), ReleaseUnused(epoch=epoch(1)))
    assert following.state.serving == serving().serving


def test_a_node_without_a_stage_may_leave_at_once() -> None:
    following = after(serving(), LeaveRequested(node_id=C))
    assert following.actions == (Vacated(nodes=frozenset({C})),)
    assert following.state.leaving == {C}


def test_a_plan_is_made_again_when_a_node_of_it_is_lost() -> None:
    state = State(epoch=epoch(2), attempt=2, phase=Phase.LOADING, planned=frozenset({A, B}))
    assert kinds(after(state, NodeLeft(node_id=B, error=BROKEN))) == [Cancel, MakePlan]
    assert kinds(after(state, NodeLeft(node_id=C, error=BROKEN))) == []


def test_a_stage_that_is_lost_while_others_load_is_looked_at_first() -> None:
    state = State(epoch=epoch(2), attempt=2, phase=Phase.LOADING, planned=frozenset({A, B}))
    following = after(state, lost(2))
    assert kinds(following) == [Cancel, Examine]
    assert MakePlan in kinds(after(following.state, Failed(attempt=2, error=BROKEN)))


def test_a_plan_that_is_in_force_is_not_loaded_again() -> None:
    state = after(serving(), LeaveRequested(node_id=B)).state
    following = after(state, Planned(attempt=2, nodes=frozenset({A, B}), is_in_force=True))
    assert kinds(following) == [Vacated, ReleaseUnused]
    assert following.state.phase is Phase.IDLE


def moving(*, needs_room: bool = False) -> Transition:
    """A move from nodes A and B to A and C that was just decided on."""
    wanted = MoveWanted(nodes=frozenset({A, C}), reason="it is faster", needs_room=needs_room)
    return after(serving(), wanted)


def claimed_move(*, needs_room: bool = False) -> Transition:
    return after(moving(needs_room=needs_room).state, Claimed(attempt=2, epoch=epoch(2)))


def test_a_move_loads_beside_what_serves_and_then_switches() -> None:
    following = moving()
    assert following.actions == (
        UsePlan(),
        Claim(attempt=2, above=epoch(1), may_be_alone=False),
    )
    following = after(following.state, Claimed(attempt=2, epoch=epoch(2)))
    assert following.actions == (Load(attempt=2, release_first=False),)
    assert following.state.serving is not None
    following = after(following.state, Loaded(attempt=2))
    assert following.actions == (
        Detach(error=None),
        ReportState(state=DeploymentState.LOADING, reason="connecting; it is faster"),
        Connect(attempt=2),
    )
    following = after(following.state, Connected(attempt=2))
    assert MoveOver() in following.actions
    assert following.state.serving == Serving(epoch=epoch(2), nodes=frozenset({A, C}))
    assert not following.state.is_move


def test_a_move_without_room_stops_what_serves_before_it_loads() -> None:
    following = claimed_move(needs_room=True)
    assert following.actions == (
        Detach(error=None),
        ReportState(state=DeploymentState.LOADING, reason="loading; it is faster"),
        Load(attempt=2, release_first=True),
    )


@pytest.mark.parametrize("is_other_next", [False, True])
def test_a_move_that_cannot_be_loaded_changes_nothing(*, is_other_next: bool) -> None:
    failure = Failed(attempt=2, error=BROKEN, is_other_next=is_other_next)
    following = after(claimed_move().state, failure)
    assert kinds(following) == [MoveOver, Vacated, ReleaseUnused]
    assert following.actions[0] == MoveOver(reason="broken")
    assert following.actions[-1] == ReleaseUnused(epoch=epoch(2))
    state = following.state
    assert (state.phase, state.serving) == (Phase.IDLE, serving().serving)
    assert not state.is_move


def test_a_move_that_is_not_agreed_to_changes_nothing() -> None:
    refusal = ClaimRefused(attempt=2, reason="no", is_alone=True, highest=epoch(7))
    following = after(moving().state, refusal)
    assert kinds(following) == [MoveOver, Vacated, ReleaseUnused]
    assert following.state.serving == serving().serving
    assert following.state.epoch == epoch(7)
    assert following.state.alone_since is None


def test_a_move_is_given_up_when_a_node_that_only_its_plan_has_is_lost() -> None:
    following = after(claimed_move().state, NodeLeft(node_id=C, error=BROKEN))
    assert kinds(following) == [Cancel, MoveOver, Vacated, ReleaseUnused]
    assert following.state.serving == serving().serving


def test_a_loss_while_it_moves_is_recovered_from_as_ever() -> None:
    following = after(claimed_move().state, NodeLeft(node_id=B, error=BROKEN))
    assert kinds(following) == [MoveOver, Cancel, Detach, Cancel, MakePlan]
    assert not following.state.is_move


def test_a_node_that_leaves_is_more_urgent_than_a_move() -> None:
    following = after(claimed_move().state, LeaveRequested(node_id=B))
    assert kinds(following) == [MoveOver, Cancel, MakePlan]
    assert following.state.serving == serving().serving
    assert not following.state.is_move


def test_a_move_that_cannot_be_connected_is_a_failure_as_any() -> None:
    following = after(claimed_move().state, Loaded(attempt=2), Failed(attempt=2, error=BROKEN))
    assert kinds(following)[:2] == [MoveOver, Cancel]
    assert MakePlan in kinds(following)
    assert not following.state.is_move


@pytest.mark.parametrize("phase", [Phase.PLANNING, Phase.LOADING, Phase.PAUSED])
def test_nothing_is_moved_while_something_else_is_under_way(phase: Phase) -> None:
    state = replace(serving(), phase=phase)
    following = after(state, MoveWanted(nodes=frozenset({C}), reason=""))
    assert kinds(following) == [MoveOver]
    assert following.state == state


def test_nothing_is_moved_that_does_not_serve() -> None:
    state = replace(serving(), serving=None)
    assert after(state, MoveWanted(nodes=frozenset({C}), reason="")).state == state


def test_after_the_end_nothing_follows() -> None:
    following = after(replace(serving(), leaving=frozenset({B})), Ended())
    assert kinds(following) == [Cancel, Detach, Vacated]
    for event in (DeploymentStarted(), NodeJoined(), lost(), Ended()):
        assert after(following.state, event) == Transition(state=following.state)
    late = after(following.state, LeaveRequested(node_id=A))
    assert late == Transition(state=following.state, actions=(Vacated(nodes=frozenset({A})),))


_AWAITED: dict[Phase, tuple[type[Action], ...]] = {
    Phase.PLANNING: (MakePlan,),
    Phase.CLAIMING: (Claim,),
    Phase.LOADING: (Load, Examine),
    Phase.CONNECTING: (Connect, Examine),
    Phase.PAUSED: (Pause,),
}


_NODES = st.sampled_from((A, B, C))
_SOME = st.frozensets(_NODES, min_size=1)
_IS = st.booleans()


def _attempt(state: State, *, is_late: bool) -> int:
    return max(1, state.attempt - 1) if is_late else state.attempt


_EventIn = Callable[[State], Event]

# Made once: strategies that are made in a test are validated again for every draw.
_EVENTS: st.SearchStrategy[_EventIn] = st.one_of(
    st.tuples(_IS, _SOME, _IS, _IS).map(
        lambda drawn: (
            lambda state: Planned(
                attempt=_attempt(state, is_late=drawn[0]),
                nodes=drawn[1],
                needs_room=drawn[2],
                is_in_force=drawn[3],
            )
        )
    ),
    _IS.map(
        lambda is_late: (
            lambda state: Claimed(
                attempt=_attempt(state, is_late=is_late), epoch=epoch(state.epoch.number + 1)
            )
        )
    ),
    st.tuples(_IS, _IS, st.sampled_from(("none", "higher", "first"))).map(
        lambda drawn: (
            lambda state: ClaimRefused(
                attempt=_attempt(state, is_late=drawn[0]),
                reason="no",
                is_alone=drawn[1],
                highest={
                    "none": None,
                    "higher": epoch(state.epoch.number + 2),
                    "first": epoch(0),
                }[drawn[2]],
            )
        )
    ),
    _IS.map(lambda is_late: lambda state: Loaded(attempt=_attempt(state, is_late=is_late))),
    _IS.map(lambda is_late: lambda state: Connected(attempt=_attempt(state, is_late=is_late))),
    st.tuples(_IS, _IS).map(
        lambda drawn: (
            lambda state: Failed(
                attempt=_attempt(state, is_late=drawn[0]), error=BROKEN, is_other_next=drawn[1]
            )
        )
    ),
    st.tuples(_IS, _IS).map(
        lambda drawn: (
            lambda state: StageLost(
                epoch=epoch(0) if drawn[0] else state.epoch, error=BROKEN, is_in_use=drawn[1]
            )
        )
    ),
    st.just(lambda state: TokenCommitted(epoch=state.epoch)),
    _NODES.map(lambda node_id: lambda _: NodeLeft(node_id=node_id, error=BROKEN)),
    st.just(lambda _: NodeJoined()),
    _NODES.map(lambda node_id: lambda _: LeaveRequested(node_id=node_id)),
    st.tuples(_SOME, _IS).map(
        lambda drawn: lambda _: MoveWanted(nodes=drawn[0], reason="faster", needs_room=drawn[1])
    ),
    _IS.map(lambda is_late: lambda state: PauseOver(attempt=_attempt(state, is_late=is_late))),
)
_COURSE = st.lists(st.tuples(st.sampled_from((0.0, 1.0, 20.0)), _EVENTS), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=100)
@given(_COURSE)
def test_whatever_happens_something_goes_on(
    course: Sequence[tuple[float, _EventIn]],
) -> None:
    """No order of events leaves a deployment that neither serves nor waits for an answer."""
    now, pending, num_moves = 0.0, set[tuple[type[Action], int]](), 0
    following = apply(State(epoch=epoch(0)), DeploymentStarted(), now)
    for seconds, event_in in course:
        state = following.state
        for action in following.actions:
            if isinstance(action, Cancel):
                pending = {each for each in pending if each[0] is Pause}
            number = getattr(action, "attempt", None)
            if number is not None:
                pending.add((type(action), number))
        if state.serving is None:
            awaited = {(kind, state.attempt) for kind in _AWAITED.get(state.phase, ())}
            assert awaited & pending, f"nothing is under way in {state}"
        now += seconds
        event = event_in(state)
        note(f"{now} s: {event}")
        following = apply(state, event, now)
        num_moves += isinstance(event, MoveWanted)
        num_moves -= sum(isinstance(action, MoveOver) for action in following.actions)
        assert num_moves == following.state.is_move, "every move ends, and says so once"
        assert following.state.phase not in (Phase.IDLE, Phase.PAUSED) or not num_moves
        assert following.state.attempt >= state.attempt
        assert following.state.epoch >= state.epoch
        assert following.state.num_failures <= state.num_failures + 1
        assert sum(isinstance(action, MakePlan) for action in following.actions) <= 1
        detached = [isinstance(action, Detach) for action in following.actions]
        if state.serving is not None and following.state.serving != state.serving:
            is_committed = isinstance(event, TokenCommitted)
            assert any(detached) or is_committed, "the pipeline of the epoch before stays"
        if any(isinstance(action, Serve) for action in following.actions):
            assert isinstance(event, Connected)
            assert state.serving is None
