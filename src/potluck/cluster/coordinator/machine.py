"""The life of a deployment at its coordinator as a pure state machine (sans I/O).

``apply`` takes a state, an event and the time, and returns the next state and the actions that it
calls for. ``Deployment`` carries them out in the agent's loop, the simulation on a virtual clock.

A deployment goes through *attempts*. Each makes a plan, claims an epoch for it, loads what nobody
holds, connects the stages and then serves. Where a stage or a node is lost there is another attempt
at once; after a failure to plan or to load there is a pause first, which a node that joins ends.
While a deployment serves, an attempt may run beside it: when a node wants to leave, or to *move* to
a better plan. The stages in use stay in use until those of the new plan are loaded. A move that
fails before that changes nothing.

Every attempt has a number, and what it asked for is answered with that number. Answers to earlier
attempts are ignored, so that nothing needs to be cancelled for the state to be right.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from potluck.cluster.coordinator import actions, events
from potluck.cluster.coordinator.actions import Action
from potluck.cluster.coordinator.events import Event
from potluck.errors import PotluckError
from potluck.types.cluster import Epoch, NodeId

PAUSE_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Before the next attempt, by how many failed in a row."""

MOST_PAUSE_SECONDS = 5.0
"""The same where nothing was loaded in vain. What the next attempt needs is not always a node that
joins: two nodes may find each other again, or memory be given back. Requests wait for a minute.
"""

MINORITY_SECONDS = 15.0
"""How long a side that most of the deployment's holders are not on waits for them to come back.

After a suspension, or when a cable is plugged in again, the links stand within two seconds."""

NO_QUORUM_PAUSE_SECONDS = 0.5
OUTBID_PAUSE_SECONDS = 0.2
"""Two candidates that outbid each other have different ids, and do not meet again so soon."""


class Phase(enum.Enum):
    """What the present attempt waits for."""

    IDLE = "idle"
    PLANNING = "planning"
    CLAIMING = "claiming"
    LOADING = "loading"
    CONNECTING = "connecting"
    PAUSED = "paused"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The epoch that serves and the nodes that its stages are on.

    ``has_committed`` says whether a token was committed in it.
    """

    epoch: Epoch
    nodes: frozenset[NodeId]
    has_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of one deployment at its coordinator.

    ``epoch`` is the highest that was taken here. ``is_first`` until it serves for the first time,
    for whoever waits for that. ``planned`` are the nodes of the attempt's plan, which
    ``needs_room`` if stages have to be released before it can be loaded. ``leaving`` are nodes to
    plan without. ``num_failures`` to load or to be of use, and ``num_unmet`` to plan or to connect,
    were in a row. ``alone_since`` is when most holders were first out of reach. ``is_outdated``: a
    node has joined since the attempt began. ``is_move``: the attempt under way moves a deployment
    that serves to a better plan.
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
class Next:
    """What an event leads to: the state after it, and the actions in their order."""

    state: State
    actions: tuple[Action, ...] = field(default=())


def apply(state: State, event: Event, now: float) -> Next:
    """Return what ``event`` at ``now`` (seconds of any monotonic clock) leads to. Pure."""
    if state.phase is Phase.OVER:
        return Next(state=state)
    match event:
        case events.Begun(reason=reason):
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
                return Next(state=state)
            committing = replace(serving, has_committed=True)
            return Next(state=replace(state, serving=committing, num_failures=0))
        case events.NodeLeft(node_id=node_id, error=error):
            return _node_left(state, node_id, error)
        case events.NodeJoined():
            if state.phase is Phase.PAUSED:
                return _attempt(state)
            return Next(state=replace(state, is_outdated=_is_under_way(state)))
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
                    *_move_over(state, "the deployment ends here"),
                    actions.Cancel(),
                    actions.Detach(error=None),
                    actions.Vacated(nodes=state.leaving),
                ],
            )
        case _:
            return Next(state=state)


def _awaits(state: State, attempt: int, phase: Phase) -> bool:
    return state.attempt == attempt and state.phase is phase


def _is_under_way(state: State) -> bool:
    return state.phase not in (Phase.IDLE, Phase.PAUSED, Phase.OVER)


def _with(state: State, todo: Iterable[Action]) -> Next:
    return Next(state=state, actions=tuple(todo))


def _attempt(state: State) -> Next:
    """Begin another attempt; whatever an earlier one still waits for is void."""
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
        todo.append(actions.Say(reason=_because("being placed", state.reason)))
    todo.append(actions.MakePlan(attempt=following.attempt, without=state.leaving))
    return _with(following, todo)


def _move(state: State, event: events.MoveWanted, now: float) -> Next:
    """Claim an epoch for a plan that was made already; nothing else must be under way."""
    if state.serving is None or state.phase is not Phase.IDLE:
        return _with(state, [actions.MoveOver(reason="another plan is being carried out already")])
    moving = replace(
        state,
        attempt=state.attempt + 1,
        is_outdated=False,
        is_move=True,
        reason=event.reason,
    )
    planned = events.Planned(attempt=moving.attempt, nodes=event.nodes, needs_room=event.needs_room)
    return _with_first(actions.TakePlan(attempt=moving.attempt), _planned(moving, planned, now))


def _move_over(state: State, reason: str) -> list[Action]:
    """What tells that a move ends, if there is one."""
    return [actions.MoveOver(reason=reason)] if state.is_move else []


def _serve_on(state: State, reason: str) -> Next:
    """An attempt beside the plan that serves comes to nothing, and that plan stays."""
    idle = replace(state, phase=Phase.IDLE, planned=frozenset(), is_move=False, reason="")
    return _with(
        idle,
        [
            *_move_over(state, reason),
            # What wants to leave cannot be replaced; it serves on until it has left.
            actions.Vacated(nodes=state.leaving),
            actions.ReleaseUnused(epoch=state.epoch),
        ],
    )


def _planned(state: State, event: events.Planned, now: float) -> Next:
    if event.is_in_force and state.serving is not None:
        return _serve_on(state, "it is the plan in force")
    alone_since = state.alone_since
    may_be_alone = alone_since is not None and now - alone_since >= MINORITY_SECONDS
    claiming = replace(
        state, phase=Phase.CLAIMING, planned=event.nodes, needs_room=event.needs_room
    )
    claim = actions.Claim(attempt=state.attempt, above=state.epoch, may_be_alone=may_be_alone)
    return _with(claiming, [claim])


def _claimed(state: State, event: events.Claimed) -> Next:
    loading = replace(state, phase=Phase.LOADING, epoch=event.epoch, alone_since=None)
    todo: list[Action] = []
    if state.serving is not None and state.needs_room:
        todo.append(actions.Detach(error=None))
        loading = replace(loading, serving=None)
    if loading.serving is None:
        todo.append(actions.Say(reason=_because("loading", state.reason)))
    todo.append(actions.Load(attempt=state.attempt, release_first=loading.serving is None))
    return _with(loading, todo)


def _refused(state: State, event: events.ClaimRefused, now: float) -> Next:
    epoch = state.epoch if event.highest is None else max(state.epoch, event.highest)
    refused = replace(state, phase=Phase.PAUSED, epoch=epoch)
    seconds = OUTBID_PAUSE_SECONDS
    if event.is_alone:
        since = now if state.alone_since is None else state.alone_since
        refused = replace(refused, alone_since=since)
        seconds = NO_QUORUM_PAUSE_SECONDS
    if state.is_move:  # it can wait, and is looked at again
        return _serve_on(replace(refused, alone_since=state.alone_since), event.reason)
    todo: list[Action] = []
    if state.serving is None:
        todo.append(actions.Say(reason=event.reason, is_degraded=True))
    todo.append(actions.Pause(attempt=state.attempt, seconds=seconds))
    return _with(refused, todo)


def _loaded(state: State) -> Next:
    connecting = replace(state, phase=Phase.CONNECTING, serving=None)
    todo: list[Action] = []
    if state.serving is not None:  # the stages were loaded beside those in use
        todo += [
            actions.Detach(error=None),
            actions.Say(reason=_because("connecting", state.reason)),
        ]
    todo.append(actions.Connect(attempt=state.attempt))
    return _with(connecting, todo)


def _connected(state: State) -> Next:
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
            actions.Serve(attempt=state.attempt),
            actions.Say(reason="", is_ready=True),
            *_move_over(state, ""),
            actions.Vacated(nodes=state.leaving - state.planned),
        ],
    )
    if state.leaving & state.planned:  # asked for while this plan was being made
        return _then_attempt(served)
    return served


def _failed(state: State, event: events.Failed) -> Next:
    if state.is_first and not event.is_other_next:
        over = replace(state, phase=Phase.OVER)
        return _with(over, [actions.GiveUp(error=event.error)])
    failed = replace(state, reason=event.error.message)
    if state.is_move and state.serving is not None:
        return _serve_on(state, event.error.message)
    if event.is_other_next:
        return _attempt(failed)
    if state.serving is not None:
        return _serve_on(state, event.error.message)
    following = _pause(replace(failed, is_move=False), event.error)
    todo = _move_over(state, event.error.message)
    return _with(following.state, [*todo, *following.actions])


def _pause(state: State, error: PotluckError) -> Next:
    """After a failure to plan, to load or to serve: the longer, the more there were in a row."""
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
    said = actions.Say(reason=error.message, is_degraded=True)
    if seconds == 0:
        return _with_first(said, _attempt(failed))
    paused = replace(failed, phase=Phase.PAUSED)
    return _with(
        paused,
        [
            said,
            actions.Vacated(nodes=state.leaving),
            actions.Pause(attempt=state.attempt, seconds=seconds),
        ],
    )


def _stage_lost(state: State, epoch: Epoch, error: PotluckError, *, is_suspicious: bool) -> Next:
    """``is_suspicious``: it counts as a failure to serve, if no token was committed at all."""
    serving = state.serving
    if serving is not None and serving.epoch == epoch:
        lost = replace(state, serving=None, is_move=False, reason=error.message)
        todo = _move_over(state, error.message)
        todo += [
            *([actions.Cancel()] if state.is_move else []),
            actions.Detach(error=error),
            actions.Say(reason=error.message, is_degraded=True),
        ]
        if is_suspicious and not serving.has_committed:
            following = _pause(lost, error)
        else:
            following = _attempt(lost)
        return _with(following.state, [*todo, *following.actions])
    if epoch == state.epoch and state.phase in (Phase.LOADING, Phase.CONNECTING):
        return _with(state, [actions.Cancel(), actions.Examine(attempt=state.attempt, error=error)])
    return Next(state=state)


def _node_left(state: State, node_id: NodeId, error: PotluckError) -> Next:
    left = replace(state, leaving=state.leaving - {node_id})
    serving = state.serving
    if serving is not None and node_id in serving.nodes:
        return _stage_lost(left, serving.epoch, error, is_suspicious=False)
    if _is_under_way(state) and node_id in state.planned:
        if state.is_move and serving is not None:
            return _with_first(actions.Cancel(), _serve_on(left, error.message))
        return _attempt(replace(left, reason=error.message))
    return Next(state=left)


def _leave(state: State, node_id: NodeId) -> Next:
    leaving = replace(state, leaving=state.leaving | {node_id})
    serving = state.serving
    if serving is not None and node_id in serving.nodes:
        return _attempt(leaving)
    if _is_under_way(state) and (node_id in state.planned or state.phase is Phase.PLANNING):
        return _attempt(leaving)
    return _with(leaving, [actions.Vacated(nodes=frozenset({node_id}))])


def _then_attempt(served: Next) -> Next:
    following = _attempt(served.state)
    return _with(following.state, [*served.actions, *following.actions])


def _with_first(action: Action, rest: Next) -> Next:
    return _with(rest.state, [action, *rest.actions])


def _because(what: str, reason: str) -> str:
    """What goes on, and why it has to."""
    return f"{what}; {reason}" if reason else what
