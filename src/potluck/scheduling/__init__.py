"""Which sequences take part in which step, and who owns which cache block.

State machines without I/O, clocks or threads: they take events and return steps. Engines and
transports are none of their business.
"""

from potluck.scheduling.blocks import BlockPool
from potluck.scheduling.scheduler import Scheduler, SchedulerLimits
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest

__all__ = [
    "BlockPool",
    "CommittedToken",
    "FinishReason",
    "Scheduler",
    "SchedulerLimits",
    "SequenceRequest",
]
