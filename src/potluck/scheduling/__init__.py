"""Which sequences take part in which step, and which sequence owns which cache block.

State machines without I/O, clocks or threads: they take events and return steps. They know nothing
about engines or transports.
"""

__all__ = [
    "blocks",
    "dispatcher",
    "frame_limits",
    "ledger",
    "limits",
    "pipeline",
    "step_times",
    "suspects",
    "vectors",
]
