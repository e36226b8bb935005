"""Responses and their events.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from support.http.toy_gateway import ToyTokenizer
from support.processes.proportion import assert_in_proportion
from support.text.rendered import (
    USAGE,
    Event,
    arguments_delta,
    events,
    finish_delta,
    reasoning_delta,
    scored_delta,
    stream,
    text_delta,
    tool_call_delta,
    whole,
)

from potluck.api.delta import Delta
from potluck.api.dialects.openai.responses.bodies import parse_response
from potluck.api.dialects.openai.responses.rendering import ResponseRenderer
from potluck.api.errors import ApiError
from potluck.api.rendering import Json
from potluck.types.sequence import FinishReason
from potluck.types.step import SamplingParams

FULL = [
    reasoning_delta("H"),
    reasoning_delta("m"),
    text_delta("I "),
    text_delta("look."),
    tool_call_delta(0, "find", '{"a":'),
    arguments_delta(0, "1}"),
    tool_call_delta(1, "clock", "{}"),
    finish_delta(),
]


class Kept:
    """What the renderer has told of complete responses."""

    def __init__(self) -> None:
        self.responses: list[tuple[Json, list[Json]]] = []

    def __call__(self, response: Json, output: Sequence[Json]) -> None:
        self.responses.append((response, list(output)))


def renderer(kept: Kept | None = None, **fields: Any) -> ResponseRenderer:
    body = parse_response(json.dumps({"model": "m", "input": "hi", **fields}).encode())
    sampling = SamplingParams(temperature=0.5, top_p=0.9)
    return ResponseRenderer(body, sampling, ToyTokenizer(), kept or Kept())


def without_ids(events: list[Event]) -> list[Event]:
    """Events whose ids are replaced by the type of the item and how many there were before."""
    text = json.dumps(events)
    names = [
        event["item"]["id"] for event in events if event["type"] == "response.output_item.added"
    ]
    for number, name in enumerate(names):
        text = text.replace(name, f"item {number}")
        text = text.replace(f"call_{name.partition('_')[2]}", f"call {number}")
    found: list[Event] = json.loads(text)
    return found


def test_a_stream_of_text() -> None:
    each = renderer()
    found = events(stream(each, [text_delta("Hel"), text_delta("lo"), finish_delta()]))
    assert [event.pop("sequence_number") for event in found] == list(range(len(found)))
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    done = {**part, "text": "Hello"}
    item = {"id": "item 0", "type": "message", "status": "in_progress", "role": "assistant"}
    of_part = {"item_id": "item 0", "output_index": 0, "content_index": 0}
    assert without_ids(found)[2:-1] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "content": []},
        },
        {"type": "response.content_part.added", **of_part, "part": part},
        {"type": "response.output_text.delta", **of_part, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **of_part, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **of_part, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **of_part, "part": done},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**item, "status": "completed", "content": [done]},
        },
    ]
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    begun = found[0]["response"]
    assert found[1]["response"] == begun
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["status"] == "completed"
    assert found[-1]["response"]["id"] == each.request_id == begun["id"]
    assert each.request_id.startswith("resp_")


def test_a_stream_of_a_thought_a_text_and_two_calls_has_an_item_for_each() -> None:
    found = events(stream(renderer(), FULL))
    numbered = [event["sequence_number"] for event in found]
    assert numbered == list(range(len(found)))
    assert [
        (event["type"].removeprefix("response."), event.get("output_index"), event.get("delta"))
        for event in found[2:-1]
    ] == [
        ("output_item.added", 0, None),
        ("content_part.added", 0, None),
        ("reasoning_text.delta", 0, "H"),
        ("reasoning_text.delta", 0, "m"),
        ("reasoning_text.done", 0, None),
        ("content_part.done", 0, None),
        ("output_item.done", 0, None),
        ("output_item.added", 1, None),
        ("content_part.added", 1, None),
        ("output_text.delta", 1, "I "),
        ("output_text.delta", 1, "look."),
        ("output_text.done", 1, None),
        ("content_part.done", 1, None),
        ("output_item.done", 1, None),
        ("output_item.added", 2, None),
        ("function_call_arguments.delta", 2, '{"a":'),
        ("function_call_arguments.delta", 2, "1}"),
        ("function_call_arguments.done", 2, None),
        ("output_item.done", 2, None),
        ("output_item.added", 3, None),
        ("function_call_arguments.delta", 3, "{}"),
        ("function_call_arguments.done", 3, None),
        ("output_item.done", 3, None),
    ]
    added = {event["output_index"]: event["item"]["id"] for event in found if "item" in event}
    assert all(
        event["item_id"] == added[event["output_index"]] for event in found if "item_id" in event
    )


def test_a_whole_response_has_what_the_stream_has() -> None:
    kept = Kept()
    answer = whole(renderer(kept), FULL)
    streamed = events(stream(renderer(), FULL))[-1]["response"]
    for response in (answer, streamed):
        for item in response["output"]:
            assert item.pop("id").partition("_")[0] in ("rs", "msg", "fc")
            item.pop("call_id", None)
        assert response["output"] == [
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm"}],
            },
            {
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
                ],
            },
            {
                "type": "function_call",
                "status": "completed",
                "name": "find",
                "arguments": '{"a":1}',
            },
            {"type": "function_call", "status": "completed", "name": "clock", "arguments": "{}"},
        ]
        assert response["usage"] == {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 27,
        }
    ((kept_response, output),) = kept.responses
    assert kept_response["status"] == "completed"
    assert [item["type"] for item in output] == [item["type"] for item in answer["output"]]


def test_what_was_asked_for_is_said_again() -> None:
    tool = {"type": "function", "name": "find", "parameters": {"type": "object"}, "strict": False}
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    answer = whole(
        renderer(
            instructions="Be brief",
            max_output_tokens=9,
            metadata={"a": "b"},
            parallel_tool_calls=False,
            previous_response_id="resp_0",
            reasoning={"effort": "low"},
            store=False,
            text={"format": form},
            tool_choice={"type": "function", "name": "find"},
            tools=[tool],
            user="somebody",
        ),
        [finish_delta()],
    )
    assert answer.pop("id").startswith("resp_")
    assert abs(answer.pop("created_at") - time.time()) < 60
    answer.pop("usage")
    assert answer == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "model": "m",
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": "resp_0",
        "reasoning": {"effort": "low", "summary": None},
        "store": False,
        "temperature": 0.5,
        "text": {"format": form},
        "tool_choice": {"type": "function", "name": "find"},
        "tools": [{**tool, "description": None}],
        "top_p": 0.9,
        "truncation": "disabled",
        "user": "somebody",
    }


CUSTOM = {"type": "custom", "name": "sql"}
OPENAI_EVENTS: TypeAdapter[object] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "expected"),
    [
        (
            CUSTOM,
            "sql",
            '{"input": "a\\nb"}',
            {"type": "custom_tool_call", "name": "sql", "input": "a\nb"},
        ),
        (
            {"type": "local_shell"},
            "local_shell",
            '{"command": ["ls"], "timeout_ms": 5}',
            {
                "type": "local_shell_call",
                "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5},
            },
        ),
        (
            {"type": "shell"},
            "shell",
            '{"commands": ["ls"]}',
            {
                "type": "shell_call",
                "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
            },
        ),
        (
            {"type": "apply_patch"},
            "apply_patch",
            '{"type": "delete_file", "path": "a"}',
            {
                "type": "apply_patch_call",
                "operation": {"type": "delete_file", "path": "a", "diff": ""},
            },
        ),
    ],
)
def test_a_call_of_a_tool_is_an_item_of_its_type(
    tool: dict[str, Any], name: str, arguments: str, expected: dict[str, Any]
) -> None:
    deltas = [
        tool_call_delta(0, name, arguments[:9]),
        arguments_delta(0, arguments[9:]),
        finish_delta(),
    ]
    found = events(stream(renderer(tools=[tool]), deltas))
    added, done = (
        event["item"] for event in found if event["type"].startswith("response.output_item")
    )
    assert added["type"] == expected["type"]
    assert (added["id"], added["call_id"]) == (done["id"], done["call_id"])
    assert (added["status"], done["status"]) == ("in_progress", "completed")
    assert set(added) == set(done)
    assert not [event for event in found if "function_call" in event["type"]]
    answer = whole(renderer(tools=[tool]), deltas)
    for event in found:
        OPENAI_EVENTS.validate_python(event)
    OpenAIResponse.model_validate(answer)
    assert answer["tools"] == [tool]
    for item in (done, answer["output"][0]):
        assert item["call_id"].startswith("call_")
        assert {key: item[key] for key in expected} == expected


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_call_in_a_namespace_names_it(kind: str) -> None:
    inner: dict[str, Any] = {"type": kind, "name": "sql"}
    tool = {"type": "namespace", "name": "crm", "tools": [inner]}
    deltas = [tool_call_delta(0, "crm__sql", '{"input": "a"}'), finish_delta()]
    for event in events(stream(renderer(tools=[tool]), deltas)):
        OPENAI_EVENTS.validate_python(event)
    answer = whole(renderer(tools=[tool]), deltas)
    assert answer["tools"][0]["tools"][0]["name"] == "sql"
    (item,) = answer["output"]
    assert (item["namespace"], item["name"]) == ("crm", "sql")
    assert item["type"] == ("function_call" if kind == "function" else "custom_tool_call")


def test_the_input_of_a_custom_tool_is_streamed_when_it_is_whole() -> None:
    deltas = [tool_call_delta(0, "sql", '{"input":'), arguments_delta(0, '"ab"}'), finish_delta()]
    found = events(stream(renderer(tools=[CUSTOM]), deltas))
    assert [
        (event["type"].removeprefix("response."), event.get("delta"), event.get("input"))
        for event in found[2:-1]
    ] == [
        ("output_item.added", None, None),
        ("custom_tool_call_input.delta", "ab", None),
        ("custom_tool_call_input.done", None, "ab"),
        ("output_item.done", None, None),
    ]


def test_a_call_of_a_tool_that_is_cut_off_has_what_there_is() -> None:
    cut = [tool_call_delta(0, "sql", '{"input":"ab'), finish_delta(FinishReason.LENGTH)]
    (item,) = whole(renderer(tools=[CUSTOM]), cut)["output"]
    assert (item["input"], item["status"]) == ("ab", "incomplete")
    cut = [tool_call_delta(0, "shell", '{"comm'), finish_delta(FinishReason.LENGTH)]
    (item,) = whole(renderer(tools=[{"type": "shell"}]), cut)["output"]
    assert (item["action"]["commands"], item["status"]) == ([], "incomplete")


def test_warnings_are_a_field_of_the_response() -> None:
    body = parse_response(
        json.dumps({"model": "m", "input": "hi", "tools": [{"type": "web_search"}]}).encode()
    )
    each = ResponseRenderer(body, SamplingParams(), ToyTokenizer(), Kept(), ["it is ignored"])
    answer = whole(each, [finish_delta()])
    assert answer["warnings"] == ["it is ignored"]
    assert answer["tools"] == []
    assert "warnings" not in whole(renderer(), [finish_delta()])


@pytest.mark.parametrize("deltas", [[text_delta("Hel")], [tool_call_delta(0, "find", '{"a')]])
def test_an_answer_that_was_cut_off_is_incomplete(deltas: list[Delta]) -> None:
    cut = [*deltas, finish_delta(FinishReason.LENGTH)]
    last = events(stream(renderer(), cut))[-1]
    assert last["type"] == "response.incomplete"
    for response in (last["response"], whole(renderer(), cut)):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][-1]["status"] == "incomplete"


def test_log_probabilities_are_those_of_the_text() -> None:
    def logprob(token: int) -> Event:
        return {"token": chr(token), "logprob": -0.5, "bytes": [token], "top_logprobs": []}

    deltas = [
        reasoning_delta("Hm"),
        scored_delta(60),
        scored_delta(65, "A"),
        scored_delta(66),
        scored_delta(67, "BC"),
        finish_delta(),
    ]
    found = events(stream(renderer(), deltas))
    texts = [event for event in found if event["type"] == "response.output_text.delta"]
    assert [event["logprobs"] for event in texts] == [[logprob(65)], [logprob(66), logprob(67)]]
    (part,) = whole(renderer(), deltas)["output"][1]["content"]
    assert part["logprobs"] == [logprob(65), logprob(66), logprob(67)]
    (item,) = whole(renderer(), [scored_delta(60), scored_delta(65, "<A"), finish_delta()])[
        "output"
    ]
    assert item["content"][0]["logprobs"] == [logprob(60), logprob(65)]


@pytest.mark.parametrize(("status", "code"), [(503, "server_error"), (429, "rate_limit_exceeded")])
def test_a_stream_that_fails(status: int, code: str) -> None:
    kept = Kept()
    each = renderer(kept)
    data = each.begin(USAGE) + each.delta(0, text_delta("Hel"))
    data += each.failed(ApiError(status, "a machine is gone", code="gone"))
    error, failed = events(data)[-2:]
    number = error.pop("sequence_number")
    assert error == {"type": "error", "code": "gone", "message": "a machine is gone", "param": None}
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", number + 1)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": code, "message": "a machine is gone"}
    assert kept.responses == []


def test_a_stream_that_waits_sends_comments() -> None:
    assert renderer().waiting.startswith(b":")


@pytest.mark.slow
def test_a_long_answer_takes_time_in_proportion() -> None:
    def prepared(count: int) -> Callable[[], object]:
        deltas = [*(scored_delta(65, "x" * 20) for _ in range(count)), finish_delta()]
        return partial(whole, renderer(), deltas)

    assert_in_proportion(prepared, 2_000)
