"""Renders responses: items, whole or as a stream of events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from potluck.api.delta import Delta
from potluck.api.dialects.openai.rendering import MIN_LOGPROB
from potluck.api.dialects.openai.responses.bodies import ResponseBody, ToolBody
from potluck.api.dialects.openai.responses.requests import client_tools, tool_choice, usable_tools
from potluck.api.dialects.openai.responses.tools import FUNCTION, CallForm
from potluck.api.errors import ApiError
from potluck.api.rendering import EVENT_STREAM, WAITING_COMMENT, Json, Usage, event, scored_json
from potluck.types.output import (
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
)
from potluck.types.sequence import FinishReason
from potluck.types.step import SamplingParams
from potluck.types.text import Tokenizer

OnDone = Callable[[Json, Sequence[Json]], None]
"""Called with the complete response and its items."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """The item that is being written. Mutable until it is complete. A call has a ``form``."""

    item: Json
    form: CallForm | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)


class ResponseRenderer:
    """Renders one response as its body requests. Calls ``on_done`` when it is complete."""

    stream_type = EVENT_STREAM
    waiting = WAITING_COMMENT

    def __init__(
        self,
        body: ResponseBody,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        on_done: OnDone,
        warnings: Sequence[str] = (),
    ) -> None:
        self.request_id = f"resp_{secrets.token_hex(24)}"
        self._body = body
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._on_done = on_done
        self._warnings = list(warnings)
        self._forms = {tool.function.name: tool.form for tool in client_tools(body)}
        self._created = int(time.time())
        self._output: list[Json] = []
        self._open: _Open | None = None
        self._held_logprobs: list[Json] = []
        self._reason: FinishReason | None = None
        self._num_events = 0

    def begin(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        response = self._response("in_progress", None)
        return self._events(
            [
                {"type": "response.created", "response": response},
                {"type": "response.in_progress", "response": response},
            ]
        )

    def delta(self, index: int, delta: Delta) -> bytes:
        """See ``Renderer``."""
        return self._events(self._gains(delta))

    def end(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        last = self._events(self._close(is_whole=not self._is_cut))
        response = self._done(usage)
        kind = f"response.{response['status']}"
        return last + self._events([{"type": kind, "response": response}])

    def failed(self, error: ApiError) -> bytes:
        """See ``Renderer``."""
        error_event: Json = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
        }
        # Some clients support only one of the two.
        response = self._response("failed", None)
        response["error"] = {"code": _error_code(error), "message": error.message}
        return self._events([error_event, {"type": "response.failed", "response": response}])

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> bytes:
        """See ``Renderer``."""
        for delta in choices[0]:
            for _ in self._gains(delta):
                pass
        for _ in self._close(is_whole=not self._is_cut):
            pass
        return msgspec.json.encode(self._done(usage))

    @property
    def _is_cut(self) -> bool:
        return self._reason is FinishReason.LENGTH

    def _done(self, usage: Usage) -> Json:
        response = self._response("incomplete" if self._is_cut else "completed", usage)
        self._on_done(response, self._output)
        return response

    def _response(self, status: str, usage: Usage | None) -> Json:
        body = self._body
        text_format = None if body.text is None else body.text.format
        choice = tool_choice(body)
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.request_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": list(self._output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {
                "effort": None if body.reasoning is None else body.reasoning.effort,
                "summary": None,
            },
            "store": body.store is not False,
            "temperature": self._sampling.temperature,
            "text": {"format": {"type": "text"} if text_format is None else _given(text_format)},
            "tool_choice": _given(choice),
            "tools": [
                # Clients expect every field of a function.
                tool if isinstance(tool, ToolBody) else _given(tool)
                for tool in usable_tools(body)
            ],
            "top_p": self._sampling.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage_json(usage),
            "user": body.user,
            **({"warnings": self._warnings} if self._warnings else {}),
        }

    def _gains(self, delta: Delta) -> Iterator[Json]:
        logprobs = [
            scored_json(token, self._tokenizer, least=MIN_LOGPROB) for token in delta.tokens
        ]
        if not delta.parts:
            self._held_logprobs += logprobs
        for part in delta.parts:
            yield from self._gain(part, logprobs)
            logprobs = []
        self._reason = delta.finish_reason or self._reason

    def _gain(self, part: OutputPart, logprobs: Sequence[Json]) -> Iterator[Json]:
        """Attach the tokens since the last part to this part of the text, unless they ended another
        item.
        """
        held, self._held_logprobs = self._held_logprobs, []
        match part:
            case TextPart(text=text):
                is_after_other = self._open is not None and self._open.item["type"] != "message"
                yield from self._need("message")
                yield self._more(
                    "output_text", text, logprobs if is_after_other else [*held, *logprobs]
                )
            case ReasoningPart(text=text):
                yield from self._need("reasoning")
                yield self._more("reasoning_text", text)
            case ToolCallStart(name=name):
                yield from self._close()
                form = self._forms.get(name) or replace(FUNCTION, names={"name": name})
                yield from self._begin(_Open(item=_new_call(form), form=form))
            case ToolCallArguments(text=text) if self._open is not None:
                self._open.pieces.append(text)
                called = self._open.form
                if called is not None and called.is_streamed:
                    yield self._of_item(f"response.{called.event}.delta", delta=text)

    def _more(self, kind: str, text: str, logprobs: Sequence[Json] | None = None) -> Json:
        if self._open is None:
            raise RuntimeError("text without an item")
        self._open.pieces.append(text)
        fields: Json = {"content_index": 0, "delta": text}
        if logprobs is not None:
            fields["logprobs"] = logprobs
            self._open.logprobs += logprobs
        return self._of_item(f"response.{kind}.delta", **fields)

    def _need(self, kind: str) -> Iterator[Json]:
        """Start an item of text, unless one of this kind is open."""
        if self._open is not None and self._open.item["type"] == kind:
            return
        yield from self._close()
        yield from self._begin(_Open(item=_new_item(kind)))
        part = _content_part(kind, "", ())
        yield self._of_item("response.content_part.added", content_index=0, part=part)

    def _begin(self, opened: _Open) -> Iterator[Json]:
        self._open = opened
        added = {"type": "response.output_item.added", "item": dict(opened.item)}
        yield {**added, "output_index": len(self._output)}

    def _close(self, *, is_whole: bool = True) -> Iterator[Json]:
        """Close the open item, if any; ``is_whole`` is false if it was cut off."""
        done = self._open
        if done is None:
            return
        kind, form, text = done.item["type"], done.form, "".join(done.pieces)
        if form is not None:
            fields = form.fields(text)
            item = {**done.item, **fields}
            if form.is_streamed:
                yield self._of_item(f"response.{form.event}.done", **fields, name=item["name"])
            elif form.event:  # of a custom tool, whose input is known at the end of the arguments
                yield self._of_item(f"response.{form.event}.delta", delta=fields["input"])
                yield self._of_item(f"response.{form.event}.done", **fields)
        else:
            part = _content_part(str(kind), text, done.logprobs)
            done_fields = {"content_index": 0, "text": text}
            if kind == "message":
                done_fields["logprobs"] = part["logprobs"]
            yield self._of_item(f"response.{part['type']}.done", **done_fields)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
            item = {**done.item, "content": [part]}
        if "status" in item:
            item["status"] = "completed" if is_whole else "incomplete"
        yield {
            "type": "response.output_item.done",
            "output_index": len(self._output),
            "item": item,
        }
        self._output.append(item)
        self._open = None

    def _of_item(self, kind: str, **fields: object) -> Json:
        """Return an event of the open item."""
        item_id = None if self._open is None else self._open.item["id"]
        return {"type": kind, "item_id": item_id, "output_index": len(self._output), **fields}

    def _events(self, each: Sequence[Json] | Iterator[Json]) -> bytes:
        out = []
        for data in each:
            numbered = {**data, "sequence_number": self._num_events}
            self._num_events += 1
            out.append(event(msgspec.json.encode(numbered), str(data["type"])))
        return b"".join(out)


def _new_item(kind: str) -> Json:
    number = secrets.token_hex(12)
    if kind == "message":
        return {
            "id": f"msg_{number}",
            "type": kind,
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
    return {"id": f"rs_{number}", "type": kind, "summary": [], "content": []}


def _new_call(form: CallForm) -> Json:
    number = secrets.token_hex(12)
    return {
        "id": f"{form.id_prefix}_{number}",
        "type": form.item_type,
        "status": "in_progress",
        "call_id": f"call_{number}",
        **form.names,
        **form.fields(""),
    }


def _content_part(kind: str, text: str, logprobs: Sequence[Json]) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _error_code(error: ApiError) -> str:
    """Return one of the few error codes that the API defines for failed responses."""
    return "rate_limit_exceeded" if error.status == 429 else "server_error"


def _usage_json(usage: Usage) -> Json:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.num_new_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_new_tokens,
    }


def _given(value: object) -> object:
    """Return the fields of an object of the body that are not null, and of the objects in it."""
    if isinstance(value, msgspec.Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: _given(each) for name, each in fields if each is not None}
    return [_given(each) for each in value] if isinstance(value, list) else value
