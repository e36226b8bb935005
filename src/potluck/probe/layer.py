"""What a layer of the probe is: one make of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.probe.child import ChildOutcome
from potluck.probe.system import System
from potluck.types.hardware import LayerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorQuery:
    """A child process that may load a vendor's library.

    ``module`` is run with ``python -m``, ``arguments`` and, over this process's environment,
    ``environment``; it prints one JSON document. ``merge``, which is pure, puts the answer, or the
    reason why there is none, into the report. What crashes or hangs is not asked again until
    something changes: a device, the software, the arguments, or one of ``details``.
    """

    module: str
    merge: Callable[[LayerReport, ChildOutcome], LayerReport]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    details: tuple[str, ...] = ()


def _no_queries(system: System, report: LayerReport) -> Sequence[VendorQuery]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One make of device, or one interface to devices.

    ``find`` reads files only, quickly, and loads no library of a vendor. ``queries`` are what there
    is to ask in view of what it found; they run at the same time and are merged in their order.
    ``is_joined``: what it finds may be devices of other layers, and is told from them only when
    all layers are done (``probe.opencl_match``).
    """

    name: str
    find: Callable[[System], LayerReport]
    queries: Callable[[System, LayerReport], Sequence[VendorQuery]] = _no_queries
    is_joined: bool = False
