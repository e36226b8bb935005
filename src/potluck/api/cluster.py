"""Cluster endpoints for the web page and for scripts: access, events, time series, changes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Coroutine
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.api.admission import BodyReader
from potluck.api.config import ApiLimits
from potluck.api.connection import while_connected
from potluck.api.dialect import Endpoint, bearer_key
from potluck.api.errors import ApiError, forget_frames, invalid, to_api_error
from potluck.api.rights import Rights
from potluck.api.service import json_response
from potluck.errors import CallError, OverloadedError, PotluckError
from potluck.types.console import Console, Notice, Watch
from potluck.version import __version__

_ALIVE = b": alive\n\n"
"""A comment, which clients ignore, sent when there has been nothing to send for a while."""

ACCESS_PATH = "/cluster/access"

MAX_SERIES_SECONDS = 3600
MAX_STEP_SECONDS = 60
MAX_BODY_BYTES = 64 * 1024
"""Maximum size of a plan or deploy request: a layout over hundreds of units."""
_GZIP_LEVEL = 1
"""Compresses an hour of a model with 14 stages to a third; higher levels take longer and gain
little."""

_MAX_EVENT_ID = 2**53 - 1


class ClusterEndpoints:
    """The cluster endpoints, for use in the event loop. Streams end once ``ending`` is set."""

    def __init__(
        self, console: Console, rights: Rights, limits: ApiLimits, ending: asyncio.Event
    ) -> None:
        self._console = console
        self._rights = rights
        self._limits = limits
        self._bodies = BodyReader(limits)
        self._ending = ending

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(method="GET", path=ACCESS_PATH, answer=self.access),
            Endpoint(method="GET", path="/cluster/events", answer=self.events),
            Endpoint(method="GET", path="/cluster/series", answer=self.series),
            Endpoint(method="POST", path="/cluster/plan", answer=self.plan),
            Endpoint(method="POST", path="/cluster/deployments", answer=self.deploy),
            Endpoint(method="DELETE", path="/cluster/deployments/{name:path}", answer=self.remove),
        )

    async def access(self, request: Request) -> Response:
        """``GET /cluster/access``: what this client is allowed to do. Requires no key."""
        key = bearer_key(request.headers)
        holder = None if key is None else self._rights.holder(key)
        return json_response(
            {
                "schema": "potluck.access/1",
                "needs_key": self._rights.needs_key,
                "key_name": None if holder is None else holder.name,
                "can_administer": holder is not None and holder.can_administer,
                "version": __version__,
                "node_id": self._console.node_id,
                "host_name": self._console.host_name,
            }
        )

    async def events(self, request: Request) -> Response:
        """``GET /cluster/events``."""
        last = request.headers.get("last-event-id", "").strip()
        if last and not (last.isascii() and last.isdigit() and int(last[:20]) <= _MAX_EVENT_ID):
            raise invalid("Last-Event-ID", "Last-Event-ID is not the id of an event")
        watch = self._console.watch(int(last) if last else None)
        return _EventStream(watch, self._ending, silence_seconds=self._limits.silence_seconds)

    async def series(self, request: Request) -> Response:
        """``GET /cluster/series``."""
        seconds = _number(request, "seconds", MAX_SERIES_SECONDS, default=MAX_SERIES_SECONDS)
        step = _number(request, "step", MAX_STEP_SECONDS, default=1)
        body = msgspec.json.encode(await self._console.series(seconds, step))
        headers = {"Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers, media_type="application/json")

    async def plan(self, request: Request) -> Response:
        """``POST /cluster/plan``: the plan that a deployment would use; loads nothing."""
        self._rights.require_administrator(request.headers)
        body = await self._body(request)
        return json_response(await _with_api_errors(self._console.plan(body)))

    async def deploy(self, request: Request) -> Response:
        """``POST /cluster/deployments``: start a deployment."""
        self._rights.require_administrator(request.headers)
        view = await _with_api_errors(self._console.deploy(await self._body(request)))
        return json_response(view, status=202)

    async def remove(self, request: Request) -> Response:
        """``DELETE /cluster/deployments/{name}``: undeploy, or cancel loading."""
        self._rights.require_administrator(request.headers)
        view = await _with_api_errors(self._console.undeploy(request.path_params["name"]))
        return json_response(view)

    async def _body(self, request: Request) -> bytes:
        async with self._bodies.read(request) as body:
            if len(body.data) > MAX_BODY_BYTES:
                raise ApiError(
                    413,
                    f"the body has more than {MAX_BODY_BYTES} bytes",
                    code="request_too_large",
                )
            return bytes(body.data)


def _number(request: Request, name: str, most: int, *, default: int) -> int:
    """Return a query parameter. Raises ``ApiError`` unless it is from 1 to ``most``."""
    text = request.query_params.get(name, str(default))
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    number = int(text) if is_number else 0
    if not 1 <= number <= most:
        raise invalid(name, f"{name} must be from 1 to {most}")
    return number


_R = TypeVar("_R")


async def _with_api_errors(work: Coroutine[object, object, _R]) -> _R:
    """Return the result of ``work``; convert its errors to ``ApiError``.

    An impossible plan is reported as a client error, because retrying would not help.
    """
    try:
        return await work
    except CallError as error:
        raise to_api_error(error) from error
    except PotluckError as error:
        api_error = to_api_error(error)
        if api_error.status != 503:
            raise api_error from error
        raise ApiError(422, str(api_error.message), code="not_possible") from error


class _EventStream(Response):
    """Streams ``watch``, which is always closed at the end. Clients that read too slowly are cut
    off. They, and clients of a server that stops, see the end of the stream and can reconnect.

    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    def __init__(self, watch: Watch, ending: asyncio.Event, *, silence_seconds: float) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._watch = watch
        self._ending = ending
        self._silence_seconds = silence_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises ``ClientGoneError``."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await while_connected(receive, self._ending, self._send_all(send))
            except (OverloadedError, ApiError) as error:
                forget_frames(error)
        finally:
            self._watch.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": _ALIVE, "more_body": True})
        while True:
            notices = await self._watch.take(self._silence_seconds)
            body = b"".join(map(_event_of, notices)) or _ALIVE
            await send({"type": "http.response.body", "body": body, "more_body": True})


def _event_of(notice: Notice) -> bytes:
    """Return a notice as an event of the stream."""
    number = b"" if notice.event_id is None else b"id: %d\n" % notice.event_id
    return b"event: %s\n%sdata: %s\n\n" % (notice.kind.encode(), number, notice.data)
