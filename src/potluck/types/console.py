"""The dashboard's interface to its agent: the cluster's state, and administration.

The HTTP server depends only on this protocol. Everything here is used from one event loop and never
blocks it. Documents consist of JSON types only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.types.cluster import NodeId
from potluck.types.documents.cluster import DeployDocument
from potluck.types.documents.plan import PlanDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message of the event stream; ``kind`` is ``cluster``, ``sample`` or ``event``.

    ``data`` is JSON without line breaks; only events have an ``event_id``.
    """

    kind: str
    data: bytes
    event_id: int | None = None


class Watch(Protocol):
    """One client's view of the stream."""

    async def take(self, seconds: float) -> Sequence[Notice]:
        """Wait up to ``seconds`` for notices, and return all that are available.

        Raise ``OverloadedError`` if the client was disconnected because it did not read them fast
        enough.
        """
        ...

    def close(self) -> None:
        """Stop watching. Idempotent."""
        ...


class Console(Protocol):
    """The agent's interface for the dashboard."""

    @property
    def node_id(self) -> NodeId:
        """The id of the agent's node."""
        ...

    @property
    def host_name(self) -> str:
        """The host name of the agent's machine."""
        ...

    def admits(self, token: str) -> bool:
        """Return whether ``token`` was created by ``potluck dashboard`` and is still valid, in
        constant time.
        """
        ...

    def watch(self, last_event_id: int | None) -> Watch:
        """Start a stream with the cluster, and the events after ``last_event_id`` or all stored
        ones.

        Raise ``OverloadedError`` if there are too many streams.
        """
        ...

    async def series(self, seconds: int, step_seconds: int) -> Mapping[str, object]:
        """Return a document of schema ``potluck.series/1`` about the last ``seconds``.

        Values are means over ``step_seconds``.
        """
        ...

    async def plan(self, request: bytes) -> PlanDocument:
        """Return the plan for a JSON request.

        Nothing is loaded. Raise ``ParameterError`` if fields are invalid, and any error that
        prevents planning.
        """
        ...

    async def deploy(self, request: bytes) -> DeployDocument:
        """Start a deployment, and return it when it has a plan.

        Loading continues in the background. Raise the errors of ``plan``, and any error that occurs
        before there is a plan.
        """
        ...

    async def undeploy(self, name: str) -> DeployDocument:
        """End every deployment with this name, including loading ones, and return the oldest.

        Raise ``ModelNotFoundError`` if there is none.
        """
        ...
