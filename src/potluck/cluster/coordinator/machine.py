"""The life of a deployment at its coordinator as a pure state machine (sans I/O).

``apply`` takes a state, an event and the time, and returns the next state and the resulting
actions. ``Epochs`` carries them out in the agent's loop, the simulation on a virtual clock.

A deployment goes through *attempts*. Each makes a plan, claims an epoch for it, loads the missing
stages, connects all stages and then serves. If a stage or a node is lost, another attempt starts
immediately; after a failure to plan or to load there is a pause first, which a joining node ends.
While a deployment serves, an attempt may run in the background: when a node wants to leave, or to
*move* to a better plan. The stages in use stay in use until those of the new plan are loaded. A
move that fails before that changes nothing.

Every attempt has a number, and the answers to its actions carry that number. Answers to earlier
attempts are ignored, so that the state is correct without any cancellation.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from potluck.cluster.coordinator import actions, events
from potluck.cluster.coordinator.actions import Action
from potluck.cluster.coordinator.events import Event
from potluck.errors import EdgeClosedError, EdgeError, PotluckError
from potluck.types.cluster import Epoch, NodeId
from potluck.types.deployment import DeploymentState

PAUSE_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""The pause before the next attempt, by the number of consecutive failures."""

MOST_PAUSE_SECONDS = 5.0
"""The maximum pause if nothing was loaded in vain. The next attempt may become possible without a
join: two nodes may be connected again, or memory may be freed. Requests wait for a minute.
"""

MINORITY_SECONDS = 15.0
"""How long a side without a majority of the deployment's voters waits for them to come back.

After a suspension, or when a cable is plugged in again, links are restored within two seconds."""

NO_QUORUM_PAUSE_SECONDS = 0.5
OUTBID_PAUSE_SECONDS = 0.2
"""Two candidates that outbid each other have different ids, and do not collide again so soon."""


class Phase(enum.Enum):
    """The event that the current attempt waits for."""

    IDLE = "idle"
    PLANNING = "planning"
    CLAIMING = "claiming"
    LOADING = "loading"
    CONNECTING = "connecting"
    PAUSED = "paused"
    OVER = "over"


STARTING = frozenset({Phase.LOADING, Phase.CONNECTING})
"""The phases in which the stages of an attempt start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The epoch that serves and the nodes of its stages.

    ``has_committed``: a token was committed in it.
    """

    epoch: Epoch
    nodes: frozenset[NodeId]
    has_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one deployment at its coordinator.

    ``epoch`` is the highest that was claimed here. ``is_first`` is true until it serves for the
    first time; the deploy call waits for that. ``planned`` are the nodes of the attempt's plan,
    which ``needs_room`` if stages have to be released before it can be loaded. ``leaving`` are
    nodes to plan without. ``num_failures`` counts consecutive failures to load or to serve, and
    ``num_unmet`` those to plan or to connect. ``alone_since`` is when most voters first became
    unreachable. ``is_outdated``: a node has joined since the attempt began. ``is_move``: the
    attempt in progress moves a running deployment to a better plan.
    """

    epoch: Epoch
    is_first: bool = False
    phase: Phase = Phase.IDLE
    attempt: int = 0
    planned: frozenset[NodeId] = frozenset()
    needs_room: bool = False
    serving: Serving | None = None
    leaving: frozenset[NodeId] = frozenset()
    num_failures: int = 0
    num_unmet: int = 0
    alone_since: float | None = None
    is_outdated: bool = False
    is_move: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The result of an event: the next state, and the actions in order."""

    state: State
    actions: tuple[Action, ...] = ()


def apply(state: State, event: Event, now: float) -> Transition:
    """Return the result of ``event`` at ``now`` (seconds of any monotonic clock). Pure."""
    if state.phase is Phase.OVER:
        if isinstance(event, events.LeaveRequested):
            return _with(state, [actions.Vacated(nodes=frozenset({event.node_id}))])
        return Transition(state=state)
    match event:
        case events.DeploymentStarted(reason=reason):
            return _attempt(replace(state, reason=reason))
        case events.Planned() if _awaits(state, event.attempt, Phase.PLANNING):
            return _planned(state, event, now)
        case events.Claimed() if _awaits(state, event.attempt, Phase.CLAIMING):
            return _claimed(state, event)
        case events.ClaimRefused() if _awaits(state, event.attempt, Phase.CLAIMING):
            return _refused(state, event, now)
        case events.Loaded() if _awaits(state, event.attempt, Phase.LOADING):
            return _loaded(state)
        case events.Connected() if _awaits(state, event.attempt, Phase.CONNECTING):
            return _connected(state)
        case events.Failed() if event.attempt == state.attempt and _is_under_way(state):
            return _failed(state, event)
        case events.StageLost(epoch=epoch, error=error, is_in_use=is_in_use):
            return _stage_lost(state, epoch, error, is_suspicious=is_in_use)
        case events.TokenCommitted(epoch=epoch):
            serving = state.serving
            if serving is None or serving.epoch != epoch:
                return Transition(state=state)
            committing = replace(serving, has_committed=True)
            return Transition(state=replace(state, serving=committing, num_failures=0))
        case events.NodeLeft(node_id=node_id, error=error):
            return _node_left(state, node_id, error)
        case events.NodeJoined():
            if state.phase is Phase.PAUSED:
                return _attempt(state)
            return Transition(state=replace(state, is_outdated=_is_under_way(state)))
        case events.LeaveRequested(node_id=node_id):
            return _leave(state, node_id)
        case events.MoveWanted():
            return _move(state, event, now)
        case events.PauseOver() if _awaits(state, event.attempt, Phase.PAUSED):
            return _attempt(state)
        case events.Ended():
            over = replace(state, phase=Phase.OVER, serving=None, is_move=False)
            return _with(
                over,
                [
                    *_move_over(state, "the deployment is ending on this node"),
                    actions.Cancel(),
                    actions.Detach(error=None),
                    actions.Vacated(nodes=state.leaving),
                ],
            )
        case _:
            return Transition(state=state)


def _awaits(state: State, attempt: int, phase: Phase) -> bool:
    return state.attempt == attempt and state.phase is phase


def _is_under_way(state: State) -> bool:
    return state.phase not in (Phase.IDLE, Phase.PAUSED, Phase.OVER)


def _with(state: State, todo: Iterable[Action]) -> Transition:
    return Transition(state=state, actions=tuple(todo))


def _after(todo: Iterable[Action], rest: Transition) -> Transition:
    return _with(rest.state, [*todo, *rest.actions])


def _attempt(state: State) -> Transition:
    """Begin another attempt, which invalidates everything that an earlier one still waits for."""
    following = replace(
        state,
        attempt=state.attempt + 1,
        phase=Phase.PLANNING,
        planned=frozenset(),
        is_outdated=False,
        is_move=False,
    )
    is_for_leaving = state.serving is not None
    todo = _move_over(state, "a node is about to leave" if is_for_leaving else state.reason)
    if _is_under_way(state):
        todo.append(actions.Cancel())
    if state.serving is None:
        todo.append(_report_loading("being placed", state))
    todo.append(actions.MakePlan(attempt=following.attempt, without=state.leaving))
    return _with(following, todo)


def _move(state: State, event: events.MoveWanted, now: float) -> Transition:
    """Claim an epoch for a plan that was already made; nothing else may be in progress."""
    if state.serving is None or state.phase is not Phase.IDLE:
        return _with(state, [actions.MoveOver(reason="another plan is already being deployed")])
    moving = replace(
        state,
        attempt=state.attempt + 1,
        is_outdated=False,
        is_move=True,
        reason=event.reason,
    )
    planned = events.Planned(attempt=moving.attempt, nodes=event.nodes, needs_room=event.needs_room)
    return _after([actions.UsePlan()], _planned(moving, planned, now))


def _move_over(state: State, reason: str) -> list[Action]:
    """Return the actions that report the end of a move, if there is one."""
    return [actions.MoveOver(reason=reason)] if state.is_move else []


def _serve_on(state: State, reason: str) -> Transition:
    """Keep the plan that serves after an attempt at another one has failed."""
    idle = replace(state, phase=Phase.IDLE, planned=frozenset(), is_move=False, reason="")
    return _with(
        idle,
        [
            *_move_over(state, reason),
            # A node that wants to leave cannot be replaced; it keeps serving until it has left.
            actions.Vacated(nodes=state.leaving),
            actions.ReleaseUnused(epoch=state.epoch),
        ],
    )


def _planned(state: State, event: events.Planned, now: float) -> Transition:
    if event.is_in_force and state.serving is not None:
        return _serve_on(state, "it is the plan in force")
    alone_since = state.alone_since
    may_be_alone = alone_since is not None and now - alone_since >= MINORITY_SECONDS
    claiming = replace(
        state, phase=Phase.CLAIMING, planned=event.nodes, needs_room=event.needs_room
    )
    claim = actions.Claim(attempt=state.attempt, above=state.epoch, may_be_alone=may_be_alone)
    return _with(claiming, [claim])


def _claimed(state: State, event: events.Claimed) -> Transition:
    loading = replace(state, phase=Phase.LOADING, epoch=event.epoch, alone_since=None)
    todo: list[Action] = []
    if state.serving is not None and state.needs_room:
        todo.append(actions.Detach(error=None))
        loading = replace(loading, serving=None)
    if loading.serving is None:
        todo.append(_report_loading("loading", state))
    todo.append(actions.Load(attempt=state.attempt, release_first=loading.serving is None))
    return _with(loading, todo)


def _refused(state: State, event: events.ClaimRefused, now: float) -> Transition:
    epoch = state.epoch if event.highest is None else max(state.epoch, event.highest)
    refused = replace(state, phase=Phase.PAUSED, epoch=epoch)
    seconds = OUTBID_PAUSE_SECONDS
    if event.is_alone:
        since = now if state.alone_since is None else state.alone_since
        refused = replace(refused, alone_since=since)
        seconds = NO_QUORUM_PAUSE_SECONDS
    if state.is_move:  # it can wait, and will be considered again
        return _serve_on(replace(refused, alone_since=state.alone_since), event.reason)
    todo: list[Action] = []
    if state.serving is None:
        todo.append(_report_degraded(event.reason))
    todo.append(actions.Pause(attempt=state.attempt, seconds=seconds))
    return _with(refused, todo)


def _loaded(state: State) -> Transition:
    connecting = replace(state, phase=Phase.CONNECTING, serving=None)
    todo: list[Action] = []
    if state.serving is not None:  # the stages were loaded next to those in use
        todo += [
            actions.Detach(error=None),
            _report_loading("connecting", state),
        ]
    todo.append(actions.Connect(attempt=state.attempt))
    return _with(connecting, todo)


def _connected(state: State) -> Transition:
    serving = replace(
        state,
        phase=Phase.IDLE,
        serving=Serving(epoch=state.epoch, nodes=state.planned),
        is_first=False,
        is_move=False,
        num_unmet=0,
        reason="",
    )
    served = _with(
        serving,
        [
            actions.Serve(),
            actions.ReportState(state=DeploymentState.READY),
            *_move_over(state, ""),
            actions.Vacated(nodes=state.leaving - state.planned),
        ],
    )
    if state.leaving & state.planned:  # requested while this plan was being made
        return _after(served.actions, _attempt(serving))
    return served


def _failed(state: State, event: events.Failed) -> Transition:
    if state.is_first and not event.is_other_next:
        over = replace(state, phase=Phase.OVER)
        return _with(over, [actions.FailDeployment(error=event.error)])
    failed = replace(state, reason=_reason(event.error))
    if state.is_move and state.serving is not None:
        return _serve_on(state, _reason(event.error))
    if event.is_other_next:
        return _attempt(failed)
    if state.serving is not None:
        return _serve_on(state, _reason(event.error))
    following = _pause(replace(failed, is_move=False), event.error)
    return _after(_move_over(state, _reason(event.error)), following)


def _pause(state: State, error: PotluckError) -> Transition:
    """Pause after a failure to plan, to load or to serve, longer with each consecutive failure."""
    is_unmet = state.phase in (Phase.PLANNING, Phase.CONNECTING)
    count = state.num_unmet if is_unmet else state.num_failures
    seconds = PAUSE_SECONDS[min(count, len(PAUSE_SECONDS) - 1)]
    if is_unmet:
        failed = replace(state, num_unmet=count + 1)
        seconds = min(seconds, MOST_PAUSE_SECONDS)
    else:
        failed = replace(state, num_failures=count + 1)
    if state.is_outdated:
        seconds = 0.0
    report_state = _report_degraded(_reason(error))
    if seconds == 0:
        return _after([report_state], _attempt(failed))
    paused = replace(failed, phase=Phase.PAUSED)
    return _with(
        paused,
        [
            report_state,
            actions.Vacated(nodes=state.leaving),
            actions.Pause(attempt=state.attempt, seconds=seconds),
        ],
    )


def _stage_lost(
    state: State, epoch: Epoch, error: PotluckError, *, is_suspicious: bool
) -> Transition:
    """Handle a lost stage.

    ``is_suspicious``: count a failure to serve if no token was committed at all.
    """
    serving = state.serving
    if serving is not None and serving.epoch == epoch:
        lost = replace(state, serving=None, is_move=False, reason=_reason(error))
        todo = _move_over(state, _reason(error))
        todo += [
            *([actions.Cancel()] if state.is_move else []),
            actions.Detach(error=error),
            _report_degraded(_reason(error)),
        ]
        if is_suspicious and not serving.has_committed:
            following = _pause(lost, error)
        else:
            following = _attempt(lost)
        return _after(todo, following)
    if epoch == state.epoch and state.phase in STARTING:
        return _with(state, [actions.Cancel(), actions.Examine(attempt=state.attempt, error=error)])
    return Transition(state=state)


def _node_left(state: State, node_id: NodeId, error: PotluckError) -> Transition:
    left = replace(state, leaving=state.leaving - {node_id})
    serving = state.serving
    if serving is not None and node_id in serving.nodes:
        return _stage_lost(left, serving.epoch, error, is_suspicious=False)
    if _is_under_way(state) and node_id in state.planned:
        if state.is_move and serving is not None:
            return _after([actions.Cancel()], _serve_on(left, _reason(error)))
        return _attempt(replace(left, reason=_reason(error)))
    return Transition(state=left)


def _leave(state: State, node_id: NodeId) -> Transition:
    leaving = replace(state, leaving=state.leaving | {node_id})
    serving = state.serving
    if serving is not None and node_id in serving.nodes:
        return _attempt(leaving)
    if _is_under_way(state) and (node_id in state.planned or state.phase is Phase.PLANNING):
        return _attempt(leaving)
    return _with(leaving, [actions.Vacated(nodes=frozenset({node_id}))])


def _reason(error: PotluckError) -> str:
    """Return the reason that users are shown.

    A node closes its edges when a stage stops, its own or one further on.
    """
    if isinstance(error, EdgeClosedError):
        return f"one of its stages stopped (node {error.peer} closed the connection)"
    if isinstance(error, EdgeError):
        return f"lost the connection to node {error.peer} ({error.reason})"
    return error.message


def _report_loading(what: str, state: State) -> Action:
    """Return the report of what is in progress, and why."""
    reason = f"{what}; {state.reason}" if state.reason else what
    return actions.ReportState(state=DeploymentState.LOADING, reason=reason)


def _report_degraded(reason: str) -> Action:
    return actions.ReportState(state=DeploymentState.DEGRADED, reason=reason)
