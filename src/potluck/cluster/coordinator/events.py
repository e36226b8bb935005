"""What happens to a deployment at its coordinator: what the state machine is told."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.errors import PotluckError
from potluck.types.cluster import Epoch, NodeId


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
class MoveWanted:
    """A better plan than the one that serves was found, and is worth moving to.

    ``nodes`` and ``needs_room`` are those of the plan, as in ``Planned``. ``reason`` says in a few
    words what it gains.
    """

    nodes: frozenset[NodeId]
    reason: str
    needs_room: bool = False


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
    | MoveWanted
    | PauseOver
    | Ended
)
