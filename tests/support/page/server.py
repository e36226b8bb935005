"""The page over made-up documents, served on a thread of its own.

Each cluster is below a path of its own, such as ``/3/``: the page asks for everything relative to
where it was loaded from. The page's files are served by the code of the agent, with its headers.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from support.page import documents as page_documents
from support.processes.waiting import eventually

from potluck.api.dialects.openai.rendering import error_json
from potluck.api.errors import ApiError
from potluck.api.page import PageEndpoints
from potluck.dashboard.assets import assets

_NUM_SAMPLES = 5
_MAX_SERIES_SECONDS = 600  # more take a while to make up


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPage:
    """A cluster of made-up documents, and what its models answer, piece by piece.

    Pieces are texts, or deltas as the API has them. An endless answer stops after the last of them,
    and does not end. With a ``refusal`` every plan, deployment and removal is refused for it.
    """

    num_nodes: int
    is_loading: bool = False
    is_hostile: bool = False
    can_administer: bool = True
    refusal: str = ""
    answer: Sequence[str | Mapping[str, Any]] = ("An ", "answer.")
    is_endless: bool = False

    def cluster(self) -> dict[str, Any]:
        return page_documents.cluster_document(
            self.num_nodes, is_loading=self.is_loading, hostile=self.is_hostile
        )

    def events(self) -> list[dict[str, Any]]:
        events = page_documents.event_documents(self.num_nodes)
        if self.is_hostile:
            for event in events:
                event["message"] = f"{page_documents.HOSTILE} {event['message']}"
        return events

    def sample(self, time: float) -> dict[str, Any]:
        sample = page_documents.sample_document(self.num_nodes, time)
        return {**sample, "models": self._named(sample["models"])}

    def series(self, seconds: int) -> dict[str, Any]:
        series = page_documents.series_document(self.num_nodes, seconds)
        return {**series, "models": self._named(series["models"])}

    def _named(self, models: dict[str, Any]) -> dict[str, Any]:
        """By the names that the models have in the document of the cluster."""
        names = [each["model_id"] for each in self.cluster()["deployments"]]
        return dict(zip(names, models.values(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoints:
    """What an agent would answer at the addresses that the page uses."""

    page: PlayedPage
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> list[Route]:
        files = PageEndpoints(assets()).endpoints()
        return [
            *(Route(each.path, each.answer, methods=[each.method]) for each in files),
            Route("/cluster", self.cluster),
            Route("/cluster/access", self.access),
            Route("/cluster/events", self.events),
            Route("/cluster/series", self.series),
            Route("/cluster/plan", self.plan, methods=["POST"]),
            Route("/cluster/deployments", self.deploy, methods=["POST"]),
            Route("/cluster/deployments/{name:path}", self.undeploy, methods=["DELETE"]),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def cluster(self, request: Request) -> Response:
        return JSONResponse(self.page.cluster())

    async def access(self, request: Request) -> Response:
        can_administer = self.page.can_administer
        return JSONResponse(page_documents.access_document(can_administer=can_administer))

    async def series(self, request: Request) -> Response:
        seconds = int(request.query_params["seconds"])
        return JSONResponse(self.page.series(min(seconds, _MAX_SERIES_SECONDS)))

    async def plan(self, request: Request) -> Response:
        await request.body()
        return self._refused() or JSONResponse(page_documents.plan_document(self.page.num_nodes))

    async def deploy(self, request: Request) -> Response:
        body = await request.json()
        return self._refused() or JSONResponse({"model_id": body["model"]}, status_code=202)

    async def undeploy(self, request: Request) -> Response:
        return self._refused() or JSONResponse({"model_id": request.path_params["name"]})

    def _refused(self) -> Response | None:
        """Return the agent's answer to what is not possible, with the reason in its error."""
        if not self.page.refusal:
            return None
        error = ApiError(422, self.page.refusal, code="not_possible")
        return Response(error_json(error), error.status, media_type="application/json")

    async def models(self, request: Request) -> Response:
        listed = [
            {
                "id": each["model_id"],
                "object": "model",
                "created": each["created"],
                "owned_by": "potluck",
                "state": each["state"],
                "reason": each["reason"],
            }
            for each in self.page.cluster()["deployments"]
        ]
        return JSONResponse({"object": "list", "data": listed})

    async def events(self, request: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            yield _event("cluster", self.page.cluster())
            for event in self.page.events():
                yield b"id: %d\n" % event["id"] + _event("event", event)
            for number in range(_NUM_SAMPLES):
                time = page_documents.START + 1 + number
                yield _event("sample", self.page.sample(time))
            await self.ending.wait()

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def chat(self, request: Request) -> Response:
        await request.body()
        deltas = [{"content": each} if isinstance(each, str) else each for each in self.page.answer]
        is_call = any("tool_calls" in each for each in deltas)

        async def stream() -> AsyncIterator[bytes]:
            for delta in deltas:
                yield _choice(delta, None)
            if self.page.is_endless:
                await self.ending.wait()
            yield _choice({}, "tool_calls" if is_call else "stop") + b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")


def _choice(delta: Mapping[str, Any], finish_reason: str | None) -> bytes:
    return _data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _data(document: Mapping[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(document).encode()


def _event(kind: str, document: Mapping[str, Any]) -> bytes:
    return b"event: %s\n" % kind.encode() + _data(document)


@contextmanager
def served_pages(pages: Mapping[str, PlayedPage]) -> Iterator[str]:
    """Serve each page at ``/NAME/`` until the block is left; gives the server's origin."""
    endpoints = {name: _Endpoints(page=page) for name, page in pages.items()}
    app = Starlette(
        routes=[Mount(f"/{name}", routes=each.routes()) for name, each in endpoints.items()]
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="page server")
    thread.start()
    try:
        eventually(lambda: server.started, within=20, what="the page is served")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        for each in endpoints.values():
            loops[0].call_soon_threadsafe(each.ending.set)
        server.should_exit = True
        thread.join()
