"""Messages as Anthropic writes them: https://docs.claude.com/en/api/messages-streaming"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from support.processes.proportion import assert_in_proportion
from support.text.rendered import (
    USAGE,
    Event,
    arguments_delta,
    events,
    finish_delta,
    reasoning_delta,
    stream,
    text_delta,
    tool_call_delta,
    whole,
)

from potluck.api.delta import Delta
from potluck.api.dialects.anthropic.rendering import MessageRenderer, error_json
from potluck.api.errors import ApiError
from potluck.api.rendering import Usage
from potluck.types.sequence import FinishReason

USAGE_JSON = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 16,
    "output_tokens": 7,
}


def renderer(**options: bool) -> MessageRenderer:
    return MessageRenderer("some/model", **options)


def without_ids(found: list[Event]) -> list[Event]:
    """The events, whose tools' ids are replaced by how many there were before."""
    names: dict[str, str] = {}
    for event in found:
        block = event.get("content_block", {})
        if "id" in block:
            assert block["id"].startswith("toolu_")
            block["id"] = names.setdefault(block["id"], f"call {len(names)}")
    return found


def start(index: int, block: Event) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(index: int, kind: str, **texts: str) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **texts}}


def stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def test_a_stream_of_text() -> None:
    each = renderer()
    found = events(stream(each, [text_delta("Hel"), text_delta("lo"), finish_delta()]))
    assert each.request_id.startswith("msg_")
    assert found == [
        {
            "type": "message_start",
            "message": {
                "id": each.request_id,
                "type": "message",
                "role": "assistant",
                "model": "some/model",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": USAGE_JSON,
            },
        },
        start(0, {"type": "text", "text": ""}),
        more(0, "text_delta", text="Hel"),
        more(0, "text_delta", text="lo"),
        stop(0),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": USAGE_JSON,
        },
        {"type": "message_stop"},
    ]


def test_a_stream_of_a_thought_a_text_and_two_calls_has_a_block_for_each() -> None:
    deltas = [
        reasoning_delta("Hm"),
        reasoning_delta("m"),
        text_delta("I look."),
        tool_call_delta(0, "find", '{"a":'),
        arguments_delta(0, "1}"),
        tool_call_delta(1, "clock", "{}"),
        finish_delta(),
    ]
    found = without_ids(events(stream(renderer(), deltas)))
    assert found[1:-2] == [
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        more(0, "thinking_delta", thinking="Hm"),
        more(0, "thinking_delta", thinking="m"),
        stop(0),
        start(1, {"type": "text", "text": ""}),
        more(1, "text_delta", text="I look."),
        stop(1),
        start(2, {"type": "tool_use", "id": "call 0", "name": "find", "input": {}}),
        more(2, "input_json_delta", partial_json='{"a":'),
        more(2, "input_json_delta", partial_json="1}"),
        stop(2),
        start(3, {"type": "tool_use", "id": "call 1", "name": "clock", "input": {}}),
        more(3, "input_json_delta", partial_json="{}"),
        stop(3),
    ]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_a_whole_message_has_the_same_blocks() -> None:
    deltas = [
        reasoning_delta("Hm"),
        reasoning_delta("m"),
        text_delta("I "),
        text_delta("look."),
        tool_call_delta(0, "find", '{"a":'),
        arguments_delta(0, " [1]}"),
        tool_call_delta(1, "clock"),
        finish_delta(),
    ]
    each = renderer()
    answer = whole(each, deltas)
    for block in answer["content"]:
        block.pop("id", None)
    assert answer == {
        "id": each.request_id,
        "type": "message",
        "role": "assistant",
        "model": "some/model",
        "content": [
            {"type": "thinking", "thinking": "Hmm", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "name": "find", "input": {"a": [1]}},
            {"type": "tool_use", "name": "clock", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE_JSON,
    }


def test_an_answer_without_text_has_no_blocks() -> None:
    assert whole(renderer(), [finish_delta()])["content"] == []
    kinds = [event["type"] for event in events(stream(renderer(), [finish_delta()]))]
    assert kinds == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("last", "reason", "by"),
    [
        (finish_delta(), "end_turn", None),
        (finish_delta(FinishReason.LENGTH), "max_tokens", None),
        (finish_delta(by="END"), "stop_sequence", "END"),
    ],
)
def test_why_an_answer_has_ended(last: Delta, reason: str, by: str | None) -> None:
    expected = {"stop_reason": reason, "stop_sequence": by}
    assert events(stream(renderer(), [text_delta("a"), last]))[-2]["delta"] == expected
    answer = whole(renderer(), [text_delta("a"), last])
    assert {name: answer[name] for name in expected} == expected


def test_a_call_that_was_cut_off_is_no_complete_one() -> None:
    answer = whole(
        renderer(), [tool_call_delta(0, "find", '{"path": "/ho'), finish_delta(FinishReason.LENGTH)]
    )
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {"arguments": '{"path": "/ho'}


def test_arguments_that_are_nested_too_deeply_are_a_text() -> None:
    deep = '{"a": ' + "[" * 5000 + "]" * 5000 + "}"
    answer = whole(renderer(), [tool_call_delta(0, "find", deep), finish_delta()])
    assert answer["content"][0]["input"] == {"arguments": deep}


def test_thoughts_that_are_to_be_omitted_are_empty() -> None:
    deltas = [reasoning_delta("secret"), text_delta("a"), finish_delta()]
    found = events(stream(renderer(omits_thoughts=True), deltas))
    assert "secret" not in json.dumps(found)
    assert found[1:3] == [
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        stop(0),
    ]
    answer = whole(renderer(omits_thoughts=True), deltas)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "a"},
    ]


def test_no_event_comes_before_the_message_starts() -> None:
    each = renderer()
    assert each.waiting.startswith(b":")
    each.begin(USAGE)
    assert each.waiting == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_stream_that_fails_ends_with_an_error() -> None:
    each = renderer()
    each.begin(USAGE)
    assert events(each.failed(ApiError(503, "a machine is gone"))) == [
        {"type": "error", "error": {"type": "overloaded_error", "message": "a machine is gone"}}
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors(status: int, kind: str) -> None:
    assert json.loads(error_json(ApiError(status, "no"))) == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
    }


@pytest.mark.slow
def test_a_long_answer_takes_time_in_proportion() -> None:
    def prepared(count: int) -> Callable[[], object]:
        deltas = [*(text_delta("x" * 20) for _ in range(count)), finish_delta()]
        usage = Usage(num_prompt_tokens=1, num_new_tokens=count)
        return partial(whole, renderer(), deltas, usage)

    assert_in_proportion(prepared, 4_000)
