"""The events of a deployment's state machine."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.errors import PotluckError
from potluck.types.cluster import Epoch, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStarted:
    """The deployment is run by this node: it was deployed here, or taken over."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """There is a plan, with stages on ``nodes``.

    ``needs_room``: see ``State``. ``is_in_force``: it is the plan that already serves.
    """

    attempt: int
    nodes: frozenset[NodeId]
    needs_room: bool = False
    is_in_force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """``epoch`` was claimed for the plan."""

    attempt: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRefused:
    """The claim was refused.

    ``is_alone``: too few of the deployment's voters are reachable. Otherwise one of them has seen
    or promised a higher epoch, and ``highest`` is the highest.
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
    """The edges of the plan are open, and steps may use them."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt could not be planned, loaded or connected.

    ``is_other_next``: the next plan will be different in any case, because a unit is out by now.
    """

    attempt: int
    error: PotluckError
    is_other_next: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLost:
    """A stage, an edge or the scheduler of ``epoch`` has failed.

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
    """A node has left or was lost."""

    node_id: NodeId
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node has joined: what did not fit may fit now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """A node is about to leave; the deployment must continue without it."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWanted:
    """A better plan than the current one was found, and is worth moving to.

    ``nodes`` and ``needs_room`` are those of the plan, as in ``Planned``. ``reason`` summarizes
    what it gains.
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
    """The deployment was removed, or continues at another node."""


Event = (
    DeploymentStarted
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
