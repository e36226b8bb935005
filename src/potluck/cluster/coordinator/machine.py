"""The life of a deployment at its coordinator as a pure state machine (sans I/O).

``apply`` takes a state, an event and the time, and returns the next state and the actions that it
calls for. ``Deployment`` carries them out in the agent's loop, the simulation on a virtual clock.

A deployment goes through *attempts*. Each makes a plan, claims an epoch for it, loads what nobody
holds, connects the stages and then serves. Where a stage or a node is lost there is another attempt
at once; after a failure to plan or to load there is a pause first, which a node that joins ends.
While a deployment serves, an attempt may run beside it (when a node wants to leave): the stages in
use stay in use until those of the new plan are loaded.

Every attempt has a number, and what it asked for is answered with that number. Answers to earlier
attempts are ignored, so that nothing needs to be cancelled for the state to be right.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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
    node has joined since the attempt began.
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
    reason: str = ""


# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The deployment is this node's to run: it was deployed here, or taken over."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """There is a plan, of stages on ``nodes``.

    ``needs_room``: see ``State``. ``is_in_force``: it is the one that serves already.
    """

    attempt: int
    nodes: frozenset[NodeId]
    needs_room: bool = False
    is_in_force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """``epoch`` was taken for the plan."""

    attempt: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRefused:
    """The epoch was not taken.

    ``is_alone``: too few of the deployment's holders are in reach. Otherwise a higher epoch was
    seen or promised by one of them, and ``highest`` is the highest.
    """

    attempt: int
    reason: str
    is_alone: bool
    highest: Epoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Every stage of the plan is loaded."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The edges of the plan stand, and steps may go over them."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt could not be planned, loaded or connected.

    ``is_other_next``: the next plan is another one in any case, because a unit is out by now.
    """

    attempt: int
    error: PotluckError
    is_other_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLost:
    """A stage, an edge or the scheduler of ``epoch`` is of no use any more.

    ``is_in_use``: there were sequences to compute.
    """

    epoch: Epoch
    error: PotluckError
    is_in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCommitted:
    """The first token was committed in ``epoch``."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A node is no longer there."""

    node_id: NodeId
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node is there: what did not fit may fit now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """A node is about to leave; the deployment is to go on without it."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseOver:
    """The pause of an attempt is over."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The deployment is removed, or goes on at another node."""


Event = (
    Begun
    | Planned
    | Claimed
    | ClaimRefused
    | Loaded
    | Connected
    | Failed
    | StageLost
    | TokenCommitted
    | NodeLeft
    | NodeJoined
    | LeaveRequested
    | PauseOver
    | Ended
)


# Actions


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Plan on all nodes but ``without``; answered by ``Planned`` or ``Failed``."""

    attempt: int
    without: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Take an epoch above ``above`` for the plan; answered by ``Claimed`` or ``ClaimRefused``.

    ``may_be_alone``: without most of the holders, too.
    """

    attempt: int
    above: Epoch
    may_be_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Have the stages of the plan loaded; answered by ``Loaded`` or ``Failed``.

    With ``release_first`` all that the plan does not use is released before.
    """

    attempt: int
    release_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Have the loaded stages connected; answered by ``Connected`` or ``Failed``."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Form steps over the pipeline that was connected, and release what its plan does not use."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Form no more steps, and forget those in flight. ``error`` says why the epoch was lost; None
    if it was not, and is only over.
    """

    error: PotluckError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Nobody waits for what the attempt before this one still does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """A stage was lost while others were loaded: see what that says of its unit, and answer with
    ``Failed``.
    """

    attempt: int
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """``PauseOver`` after ``seconds``."""

    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Tell the agents how the deployment is: ready, or why it is not."""

    reason: str
    is_ready: bool = False
    is_degraded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The first deployment failed, and is not tried again."""

    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacated:
    """No stage in use is on these nodes, or none can be moved away from them."""

    nodes: frozenset[NodeId]


Action = (
    MakePlan
    | Claim
    | Load
    | Connect
    | Serve
    | Detach
    | Cancel
    | Examine
    | Pause
    | Say
    | GiveUp
    | Vacated
)


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
        case Begun(reason=reason):
            return _attempt(replace(state, reason=reason))
        case Planned() if _awaits(state, event.attempt, Phase.PLANNING):
            return _planned(state, event, now)
        case Claimed() if _awaits(state, event.attempt, Phase.CLAIMING):
            return _claimed(state, event)
        case ClaimRefused() if _awaits(state, event.attempt, Phase.CLAIMING):
            return _refused(state, event, now)
        case Loaded() if _awaits(state, event.attempt, Phase.LOADING):
            return _loaded(state)
        case Connected() if _awaits(state, event.attempt, Phase.CONNECTING):
            return _connected(state)
        case Failed() if event.attempt == state.attempt and _is_under_way(state):
            return _failed(state, event)
        case StageLost(epoch=epoch, error=error, is_in_use=is_in_use):
            return _stage_lost(state, epoch, error, is_suspicious=is_in_use)
        case TokenCommitted(epoch=epoch):
            serving = state.serving
            if serving is None or serving.epoch != epoch:
                return Next(state=state)
            committing = replace(serving, has_committed=True)
            return Next(state=replace(state, serving=committing, num_failures=0))
        case NodeLeft(node_id=node_id, error=error):
            return _node_left(state, node_id, error)
        case NodeJoined():
            if state.phase is Phase.PAUSED:
                return _attempt(state)
            return Next(state=replace(state, is_outdated=_is_under_way(state)))
        case LeaveRequested(node_id=node_id):
            return _leave(state, node_id)
        case PauseOver() if _awaits(state, event.attempt, Phase.PAUSED):
            return _attempt(state)
        case Ended():
            over = replace(state, phase=Phase.OVER, serving=None)
            return _with(over, [Cancel(), Detach(error=None), Vacated(nodes=state.leaving)])
        case _:
            return Next(state=state)


def _awaits(state: State, attempt: int, phase: Phase) -> bool:
    return state.attempt == attempt and state.phase is phase


def _is_under_way(state: State) -> bool:
    return state.phase not in (Phase.IDLE, Phase.PAUSED, Phase.OVER)


def _with(state: State, actions: Iterable[Action]) -> Next:
    return Next(state=state, actions=tuple(actions))


def _attempt(state: State) -> Next:
    """Begin another attempt; whatever an earlier one still waits for is void."""
    following = replace(
        state,
        attempt=state.attempt + 1,
        phase=Phase.PLANNING,
        planned=frozenset(),
        is_outdated=False,
    )
    actions: list[Action] = []
    if _is_under_way(state):
        actions.append(Cancel())
    if state.serving is None:
        actions.append(Say(reason=_because("being placed", state.reason)))
    actions.append(MakePlan(attempt=following.attempt, without=state.leaving))
    return _with(following, actions)


def _planned(state: State, event: Planned, now: float) -> Next:
    if event.is_in_force and state.serving is not None:
        return _with(replace(state, phase=Phase.IDLE), [Vacated(nodes=state.leaving)])
    alone_since = state.alone_since
    may_be_alone = alone_since is not None and now - alone_since >= MINORITY_SECONDS
    claiming = replace(
        state, phase=Phase.CLAIMING, planned=event.nodes, needs_room=event.needs_room
    )
    claim = Claim(attempt=state.attempt, above=state.epoch, may_be_alone=may_be_alone)
    return _with(claiming, [claim])


def _claimed(state: State, event: Claimed) -> Next:
    loading = replace(state, phase=Phase.LOADING, epoch=event.epoch, alone_since=None)
    actions: list[Action] = []
    if state.serving is not None and state.needs_room:
        actions.append(Detach(error=None))
        loading = replace(loading, serving=None)
    if loading.serving is None:
        actions.append(Say(reason=_because("loading", state.reason)))
    actions.append(Load(attempt=state.attempt, release_first=loading.serving is None))
    return _with(loading, actions)


def _refused(state: State, event: ClaimRefused, now: float) -> Next:
    epoch = state.epoch if event.highest is None else max(state.epoch, event.highest)
    refused = replace(state, phase=Phase.PAUSED, epoch=epoch)
    seconds = OUTBID_PAUSE_SECONDS
    if event.is_alone:
        since = now if state.alone_since is None else state.alone_since
        refused = replace(refused, alone_since=since)
        seconds = NO_QUORUM_PAUSE_SECONDS
    actions: list[Action] = []
    if state.serving is None:
        actions.append(Say(reason=event.reason, is_degraded=True))
    actions.append(Pause(attempt=state.attempt, seconds=seconds))
    return _with(refused, actions)


def _loaded(state: State) -> Next:
    connecting = replace(state, phase=Phase.CONNECTING, serving=None)
    actions: list[Action] = []
    if state.serving is not None:  # the stages were loaded beside those in use
        actions += [Detach(error=None), Say(reason=_because("connecting", state.reason))]
    actions.append(Connect(attempt=state.attempt))
    return _with(connecting, actions)


def _connected(state: State) -> Next:
    serving = replace(
        state,
        phase=Phase.IDLE,
        serving=Serving(epoch=state.epoch, nodes=state.planned),
        is_first=False,
        num_unmet=0,
        reason="",
    )
    served = _with(
        serving,
        [
            Serve(attempt=state.attempt),
            Say(reason="", is_ready=True),
            Vacated(nodes=state.leaving - state.planned),
        ],
    )
    if state.leaving & state.planned:  # asked for while this plan was being made
        return _then_attempt(served)
    return served


def _failed(state: State, event: Failed) -> Next:
    if state.is_first and not event.is_other_next:
        over = replace(state, phase=Phase.OVER)
        return _with(over, [GiveUp(error=event.error)])
    failed = replace(state, reason=event.error.message)
    if event.is_other_next:
        return _attempt(failed)
    if state.serving is not None:
        # What wants to leave cannot be replaced; it serves on until it has left.
        idle = replace(state, phase=Phase.IDLE)
        return _with(idle, [Vacated(nodes=state.leaving)])
    return _pause(failed, event.error)


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
    said = Say(reason=error.message, is_degraded=True)
    if seconds == 0:
        return _with_first(said, _attempt(failed))
    paused = replace(failed, phase=Phase.PAUSED)
    return _with(
        paused,
        [said, Vacated(nodes=state.leaving), Pause(attempt=state.attempt, seconds=seconds)],
    )


def _stage_lost(state: State, epoch: Epoch, error: PotluckError, *, is_suspicious: bool) -> Next:
    """``is_suspicious``: it counts as a failure to serve, if no token was committed at all."""
    serving = state.serving
    if serving is not None and serving.epoch == epoch:
        lost = replace(state, serving=None, reason=error.message)
        actions: list[Action] = [
            Detach(error=error),
            Say(reason=error.message, is_degraded=True),
        ]
        if is_suspicious and not serving.has_committed:
            following = _pause(lost, error)
        else:
            following = _attempt(lost)
        return _with(following.state, [*actions, *following.actions])
    if epoch == state.epoch and state.phase in (Phase.LOADING, Phase.CONNECTING):
        return _with(state, [Cancel(), Examine(attempt=state.attempt, error=error)])
    return Next(state=state)


def _node_left(state: State, node_id: NodeId, error: PotluckError) -> Next:
    left = replace(state, leaving=state.leaving - {node_id})
    serving = state.serving
    if serving is not None and node_id in serving.nodes:
        return _stage_lost(left, serving.epoch, error, is_suspicious=False)
    if _is_under_way(state) and node_id in state.planned:
        return _attempt(replace(left, reason=error.message))
    return Next(state=left)


def _leave(state: State, node_id: NodeId) -> Next:
    leaving = replace(state, leaving=state.leaving | {node_id})
    serving = state.serving
    if serving is not None and node_id in serving.nodes:
        return _attempt(leaving)
    if _is_under_way(state) and (node_id in state.planned or state.phase is Phase.PLANNING):
        return _attempt(leaving)
    return _with(leaving, [Vacated(nodes=frozenset({node_id}))])


def _then_attempt(served: Next) -> Next:
    following = _attempt(served.state)
    return _with(following.state, [*served.actions, *following.actions])


def _with_first(action: Action, rest: Next) -> Next:
    return _with(rest.state, [action, *rest.actions])


def _because(what: str, reason: str) -> str:
    """What goes on, and why it has to."""
    return f"{what}; {reason}" if reason else what
