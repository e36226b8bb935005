"""The configuration of an agent."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.cluster.agent.load_watch import STALL_SECONDS
from potluck.cluster.agent.orphans import ORPHAN_SECONDS
from potluck.cluster.agent.own_address import FindHost
from potluck.cluster.network.membership import Address
from potluck.cluster.network.trust.secret import Secret
from potluck.cluster.worker.watch import LONGEST_STEP_TIMES
from potluck.engines.backends import BACKENDS
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.detector import Detector
from potluck.types.backend import BackendSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The configuration of one node's agent.

    ``secret`` is None if the node was invited: its state directory then has what it needs, and it
    starts alone if no member answers. ``listen`` is for control (port 0: any free one); edges
    listen on the same host. ``find_host`` returns the address to use when this machine no longer
    has that of ``listen``.

    ``memory_limit_bytes`` limits the machine's memory that stages may use. ``isa`` None selects the
    fastest instruction set that passes its test. ``backends`` are tried on what ``detectors`` find
    on this node; ``backend`` restricts the node to one backend or unit, and ``allow_software``
    permits software-emulated devices.

    A stage that makes no progress is detected within seconds (``coordinator.overdue``).
    ``step_seconds`` is the time limit for one step through all stages of a deployment that this
    node coordinates even if all of them seem to make progress; where such steps regularly take
    long, the limit is 20 times their usual time, if that is more.

    ``unit_step_seconds`` is the time limit per 32 tokens for a step of one stage on any unit but
    the CPU with the native backend: beyond it the unit is considered hung and taken out of use.
    Such a unit is tested again when it has been idle for ``idle_test_seconds``.

    Stages whose coordinator is lost stay loaded for ``orphan_seconds``, unless a coordinator asks
    for them. A worker that shows no sign of progress for ``stall_seconds`` while loading is killed,
    and the model is deployed without its unit.

    ``packed_cache_bytes`` limits the size of packed files (see ``PackedCache``), and
    ``weights_store_bytes`` that of files fetched from other nodes or the hub (None: half of the
    free disk space; 0: nothing is stored, and data goes straight into memory).
    """

    secret: Secret | None
    listen: Address
    connect: tuple[Address, ...] = ()
    find_host: FindHost = lambda: None
    multicast: bool = False
    memory_limit_bytes: int | None = None
    num_threads: int | None = None
    isa: str | None = None
    backend: str | None = None
    allow_software: bool = False
    backends: tuple[BackendSpec, ...] = BACKENDS
    detectors: tuple[Detector, ...] = DETECTORS
    lease_milliseconds: int = 1000
    step_seconds: float = 300.0
    unit_step_seconds: float = 30.0
    idle_test_seconds: float = 600.0
    stall_seconds: float = STALL_SECONDS
    orphan_seconds: float = ORPHAN_SECONDS
    packed_cache_bytes: int | None = None
    weights_store_bytes: int | None = None

    @property
    def stage_step_seconds(self) -> float:
        """``unit_step_seconds``, or less, so that a hung unit is reported before the step times
        out.

        Otherwise the coordinator gives up the stage, and nobody learns what was wrong with it.
        """
        return min(self.unit_step_seconds, self.step_seconds / (LONGEST_STEP_TIMES + 1))
