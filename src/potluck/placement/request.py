"""The input of placement and its preferences. The search is in ``place``.

This module does not import NumPy: an agent that never plans need not load it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.placement.candidates import Candidate
from potluck.placement.divided_work import DividedWork
from potluck.placement.links import LinkTable
from potluck.placement.sharing import Pool
from potluck.types.cluster import NodeId
from potluck.types.placement import Preferences

Divide = Callable[[tuple[int, ...]], DividedWork]
"""Returns the work of a group's members, given their shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """A model to place on ``candidates``, and the preferences.

    Each candidate may use its bytes as if no other drew on the same memory; ``pools``, whose
    members are indices of candidates, limit what several may use together. Steps start and end at
    the ``coordinator``, and have at most ``max_step_tokens``. ``divide`` returns what the members
    of a group with given shares compute; None if there are no groups.
    """

    candidates: tuple[Candidate, ...]
    links: LinkTable
    coordinator: NodeId
    preferences: Preferences
    max_step_tokens: int
    pools: tuple[Pool, ...] = ()
    divide: Divide | None = None

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the model."""
        return len(self.candidates[0].cost.layer_bytes)
