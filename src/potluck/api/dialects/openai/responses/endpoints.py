"""The endpoints of the Responses API."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.answer import Prepared
from potluck.api.config import ApiLimits
from potluck.api.dialect import Endpoint
from potluck.api.dialects.openai.responses.bodies import (
    Item,
    ResponseBody,
    parse_items,
    parse_response,
)
from potluck.api.dialects.openai.responses.rendering import ResponseRenderer
from potluck.api.dialects.openai.responses.requests import (
    PARAMETER_NAMES,
    input_items,
    item_messages,
    response_request,
    server_tools,
    warnings_of,
)
from potluck.api.dialects.openai.responses.store import ResponseStore, StoredResponse
from potluck.api.errors import ApiError, invalid
from potluck.api.jobs import chat_job
from potluck.api.rendering import Json
from potluck.api.service import ApiService, json_response
from potluck.types.gateway import ServedModel

_log = logging.getLogger(__name__)

_PATH = "/v1/responses"

_MAX_LOGGED = 64
"""The most different warnings that are logged, each once: clients repeat them with every turn."""


class ResponsesEndpoints:
    """For use in the event loop. Responses are stored in this object's memory only."""

    def __init__(self, service: ApiService) -> None:
        self._service = service
        self._store = ResponseStore()
        self._logged: set[str] = set()

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        respond = partial(
            self._service.answer,
            parse=parse_response,
            prepare=self._prepare,
            prompt_param="input",
            names=PARAMETER_NAMES,
        )
        return (
            Endpoint(method="POST", path=_PATH, answer=respond),
            Endpoint(method="GET", path=f"{_PATH}/{{response_id}}", answer=self.stored),
            Endpoint(method="DELETE", path=f"{_PATH}/{{response_id}}", answer=self.delete),
        )

    async def stored(self, request: Request) -> Response:
        """``GET /v1/responses/{id}``."""
        found = self._find(request.path_params["response_id"], "id")
        return Response(found.response, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """``DELETE /v1/responses/{id}``."""
        response_id = request.path_params["response_id"]
        self._find(response_id, "id")
        self._store.remove(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    def _find(self, response_id: str, param: str) -> StoredResponse:
        stored = self._store.get(response_id)
        if stored is None:
            raise ApiError(
                404,
                f"this node has no response {response_id[:80]!r}: each node keeps its most "
                "recent responses until it stops",
                code="response_not_found",
                param=param,
            )
        return stored

    def _warnings(self, body: ResponseBody, items: Sequence[Item]) -> list[str]:
        """Return and log what is ignored of a request. Raises ``ApiError`` if that is refused."""
        tools = server_tools(body)
        if tools and self._service.strict_tools:
            raise invalid(
                "tools",
                f"tools that only OpenAI's servers execute: {', '.join(tools)}; "
                "this server was started with --strict-tools",
                code="unsupported_value",
            )
        warnings = warnings_of(body, items)
        for warning in warnings:
            if warning not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add(warning)
                _log.warning("in a request for a response, %s", warning)
        return warnings

    def _prepare(self, body: ResponseBody, model: ServedModel, limits: ApiLimits) -> Prepared:
        previous_id = body.previous_response_id
        previous = None if previous_id is None else self._find(previous_id, "previous_response_id")
        items = input_items(body, self._store.item)
        warnings = self._warnings(body, items)
        added = item_messages(items)
        chat = response_request(body, [*(() if previous is None else previous.chat()), *added])
        job = chat_job(chat, model, limits)

        is_stored = body.store is not False

        def keep(response: Json, output: Sequence[Json]) -> None:
            if not is_stored:
                return
            stored = StoredResponse(
                response=msgspec.json.encode(response),
                messages=(*added, *item_messages(parse_items(output))),
                item_ids=tuple(str(item["id"]) for item in output),
                previous=previous,
            )
            self._store.put(str(response["id"]), stored)

        sampling = job.requests[0].sampling
        return Prepared(
            job=job,
            # The input is omitted: it can be large, and clients have it.
            renderer=ResponseRenderer(
                msgspec.structs.replace(body, input=""),
                sampling,
                model.tokenizer,
                keep,
                warnings,
            ),
            is_stream=bool(body.stream),
            user=chat.user,
        )
