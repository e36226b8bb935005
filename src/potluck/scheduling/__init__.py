"""Which sequences take part in which step, and which sequence owns which cache block.

``scheduler`` and its parts are state machines without I/O, clocks or threads: they take events and
return steps, and know nothing about engines or transports. ``dispatcher`` connects a scheduler to a
``pipeline`` of stages, wherever they are, and ``ledger`` has the sequences that outlive it.
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
