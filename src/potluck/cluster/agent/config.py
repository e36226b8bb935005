"""How an agent is set up."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.cluster.agent.load_watch import STALL_SECONDS
from potluck.cluster.agent.orphans import ORPHAN_SECONDS
from potluck.cluster.agent.units import UnitChoice
from potluck.cluster.membership import Address
from potluck.cluster.trust.secret import Secret
from potluck.cluster.worker.watch import LONGEST_STEP_TIMES
from potluck.engines.backends import BACKENDS
from potluck.probe.all_layers import LAYERS
from potluck.probe.layer import Layer
from potluck.types.hardware import BackendSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """How one node takes part.

    ``listen`` is for control (port 0: any free one); edges listen on the same host.
    ``memory_limit_bytes`` bounds what stages may use of the machine's memory. ``isa`` is None for
    the fastest that passes its test. ``backends`` are tried on what ``layers`` find on this node;
    ``backend`` names the one, or the unit, that alone shall serve, and ``allow_software`` lets
    software that plays a device serve.
    A stage that makes no progress is lost within seconds (``coordinator.overdue``).
    ``step_seconds`` is the longest time for one step through all stages of a deployment that this
    node coordinates, though they all seem to make progress; where such steps regularly take long,
    it is 20 times what they take, if that is more.
    ``unit_step_seconds`` is the longest time for each 32 tokens of a step of one stage, on a unit
    that is not the CPU with the native backend: the unit hangs then, and is out. Such a unit is
    tested again when it has computed nothing for ``idle_test_seconds``.
    Stages whose coordinator is lost stay loaded for ``orphan_seconds``, unless a coordinator asks
    for them.
    A worker that shows no sign of progress for ``stall_seconds`` while it loads is ended, and the
    model is deployed without its unit.
    ``packed_cache_bytes`` is the most that packed files may take (see ``PackedCache``).
    """

    secret: Secret
    listen: Address
    connect: tuple[Address, ...] = ()
    multicast: bool = False
    memory_limit_bytes: int | None = None
    num_threads: int | None = None
    isa: str | None = None
    backend: str | None = None
    allow_software: bool = False
    backends: tuple[BackendSpec, ...] = BACKENDS
    layers: tuple[Layer, ...] = LAYERS
    lease_milliseconds: int = 1000
    step_seconds: float = 300.0
    unit_step_seconds: float = 30.0
    idle_test_seconds: float = 600.0
    stall_seconds: float = STALL_SECONDS
    orphan_seconds: float = ORPHAN_SECONDS
    packed_cache_bytes: int | None = None

    @property
    def stage_step_seconds(self) -> float:
        """``unit_step_seconds``, or less, so that a unit that hangs is told before its step's end.

        Otherwise the coordinator gives up the stage, and nobody learns what was wrong with it.
        """
        return min(self.unit_step_seconds, self.step_seconds / (LONGEST_STEP_TIMES + 1))

    @property
    def unit_choice(self) -> UnitChoice:
        """What it says of the node's units."""
        return UnitChoice(
            backends=self.backends,
            asked=self.backend,
            allow_software=self.allow_software,
            isa=self.isa,
        )
