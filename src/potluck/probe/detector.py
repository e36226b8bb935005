"""A detector of the probe: it finds the devices of one vendor or interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.host.child import ChildOutcome
from potluck.host.system import System
from potluck.types.hardware import DetectorReport


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorQuery:
    """A child process that may load a vendor's library.

    ``module`` is run with ``python -m`` and ``arguments``; ``environment`` overrides this process's
    environment. It prints one JSON document. ``merge``, which is pure, adds the answer, or the
    reason why there is none, to the report. A query that crashes or hangs is not repeated until
    a device, the software, the arguments, or one of ``details`` changes.
    """

    module: str
    merge: Callable[[DetectorReport, ChildOutcome], DetectorReport]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """A detector: it finds the devices of one vendor or one interface.

    ``find`` only reads files, which is fast, and loads no vendor library. ``queries`` depend on the
    devices that it found; they run concurrently and are merged in order.
    """

    name: str
    find: Callable[[System], DetectorReport]
    queries: Callable[[System, DetectorReport], Sequence[VendorQuery]] = lambda *_: ()
