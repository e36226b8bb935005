"""What the state machine of a deployment wants done. ``Deployment`` carries it out."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.errors import PotluckError
from potluck.types.cluster import Epoch, NodeId


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePlan:
    """Make the plan that a move was wanted to the plan of this attempt."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOver:
    """The move has ended: the new plan serves, or ``reason`` says why it was given up."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseUnused:
    """An attempt beside the plan that serves has ended: release what it loaded up to ``epoch``."""

    epoch: Epoch


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
    | TakePlan
    | MoveOver
    | ReleaseUnused
)
