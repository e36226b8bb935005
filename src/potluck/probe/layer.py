"""What a layer of the probe is: one make of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.probe.child import ChildOutcome
from potluck.probe.system import System
from potluck.types.hardware import LayerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorQuery:
    """The slow half of a layer: a child process that may load a vendor's library.

    ``module`` is run with ``python -m`` and prints one JSON document. ``is_wanted`` decides from
    what the files told whether there is anything to ask; ``merge`` puts the answer, or the reason
    why there is none, into the report. Both are pure.
    """

    module: str
    is_wanted: Callable[[LayerReport], bool]
    merge: Callable[[LayerReport, ChildOutcome], LayerReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One make of device. ``find`` reads files only, quickly, and loads no library of a vendor."""

    name: str
    find: Callable[[System], LayerReport]
    query: VendorQuery | None = None
