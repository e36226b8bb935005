"""The actions of a deployment's state machine. ``Epochs`` carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.errors import PotluckError
from potluck.types.cluster import Epoch, NodeId
from potluck.types.deployment import DeploymentState


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Make a plan on all nodes except ``without``; answered by ``Planned`` or ``Failed``."""

    attempt: int
    without: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claim an epoch above ``above`` for the plan; answered by ``Claimed`` or ``ClaimRefused``.

    ``may_be_alone``: even without a majority of the voters.
    """

    attempt: int
    above: Epoch
    may_be_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load the stages of the plan; answered by ``Loaded`` or ``Failed``.

    If ``release_first``, everything that the plan does not use is released before that.
    """

    attempt: int
    release_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Connect the loaded stages; answered by ``Connected`` or ``Failed``."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Start forming steps over the connected pipeline, and release what its plan does not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Stop forming steps, and forget those in flight.

    ``error`` says why the epoch was lost; None if it ended normally.
    """

    error: PotluckError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel whatever the previous attempt is still doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """A stage was lost while others were loading: determine what that means for its unit, and
    answer with ``Failed``.
    """

    attempt: int
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait; answered by ``PauseOver`` after ``seconds``."""

    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportState:
    """Publish the state of the deployment, and why it is not ready."""

    state: DeploymentState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailDeployment:
    """The first deployment failed, and is not retried."""

    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacated:
    """No stage in use is on these nodes any more, or none can be moved away from them."""

    nodes: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePlan:
    """Use the plan of the requested move as the plan of this attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOver:
    """The move has ended: the new plan serves, or ``reason`` says why the move was abandoned."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseUnused:
    """An attempt made while another plan serves has ended: release what it loaded, up to
    ``epoch``.
    """

    epoch: Epoch


AttemptPart = MakePlan | Claim | Load | Connect

Action = (
    AttemptPart
    | Serve
    | Detach
    | Cancel
    | Examine
    | Pause
    | ReportState
    | FailDeployment
    | Vacated
    | UsePlan
    | MoveOver
    | ReleaseUnused
)
