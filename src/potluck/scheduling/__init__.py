"""Which sequences take part in which step, and who owns which cache block.

State machines without I/O, clocks or threads: they take events and return steps. Engines and
transports are none of their business.
"""

from potluck.scheduling.blocks import BlockPool
from potluck.scheduling.chunks import DEFAULT_TARGET_STEP_SECONDS
from potluck.scheduling.limits import (
    DEFAULT_CONTEXT_TOKENS,
    MAX_STEP_SEQUENCES,
    MAX_STEP_TOKENS,
    SchedulerLimits,
)
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest

__all__ = [
    "DEFAULT_CONTEXT_TOKENS",
    "DEFAULT_TARGET_STEP_SECONDS",
    "MAX_STEP_SEQUENCES",
    "MAX_STEP_TOKENS",
    "BlockPool",
    "CommittedToken",
    "FinishReason",
    "Scheduler",
    "SchedulerLimits",
    "SequenceRequest",
]
