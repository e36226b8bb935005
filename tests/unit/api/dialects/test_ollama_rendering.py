"""Answers as Ollama writes them: https://docs.ollama.com/api/streaming"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial

import pytest
from support.http.toy_gateway import ToyTokenizer
from support.processes.proportion import assert_in_proportion
from support.text.rendered import (
    USAGE,
    Event,
    arguments_delta,
    finish_delta,
    lines,
    reasoning_delta,
    scored_delta,
    stream,
    text_delta,
    tool_call_delta,
    whole,
)

from potluck.api.dialects.ollama.rendering import (
    OfDelta,
    OllamaRenderer,
    chat_fields,
    error_json,
    generate_fields,
)
from potluck.api.errors import ApiError
from potluck.api.rendering import Usage
from potluck.types.sequence import FinishReason


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def renderer(fields: OfDelta = chat_fields) -> OllamaRenderer:
    return OllamaRenderer("some:latest", fields, ToyTokenizer(), clock=Clock())


def undated(event: Event) -> Event:
    assert datetime.fromisoformat(event.pop("created_at")).tzinfo is not None
    assert event.pop("model") == "some:latest"
    return event


TAIL = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 2_000_000_000,
    "load_duration": 0,
    "prompt_eval_count": 20,
    "prompt_eval_duration": 1_000_000_000,
    "eval_count": 7,
    "eval_duration": 1_000_000_000,
}


def test_a_stream_of_a_chat() -> None:
    found = lines(
        stream(
            renderer(), [reasoning_delta("Hm"), text_delta("Hel"), text_delta("lo"), finish_delta()]
        )
    )
    assert [undated(each) for each in found] == [
        {"message": {"role": "assistant", "content": "", "thinking": "Hm"}, "done": False},
        {"message": {"role": "assistant", "content": "Hel"}, "done": False},
        {"message": {"role": "assistant", "content": "lo"}, "done": False},
        {"message": {"role": "assistant", "content": ""}, **TAIL},
    ]


def test_a_whole_chat() -> None:
    found = whole(
        renderer(),
        [
            reasoning_delta("H"),
            reasoning_delta("m"),
            text_delta("Hel"),
            text_delta("lo"),
            finish_delta(),
        ],
    )
    message = {"role": "assistant", "content": "Hello", "thinking": "Hm"}
    assert undated(found) == {"message": message, **TAIL}


def test_generated_text() -> None:
    found = lines(
        stream(
            renderer(generate_fields), [reasoning_delta("Hm"), text_delta("Hello"), finish_delta()]
        )
    )
    assert [undated(each) for each in found] == [
        {"response": "", "thinking": "Hm", "done": False},
        {"response": "Hello", "done": False},
        {"response": "", **TAIL},
    ]
    assert whole(renderer(generate_fields), [text_delta("a"), finish_delta()])["response"] == "a"


def test_calls_are_given_when_they_are_complete() -> None:
    deltas = [
        text_delta("I look."),
        tool_call_delta(0, "find", '{"a":'),
        arguments_delta(0, " 1}"),
        tool_call_delta(1, "clock"),
        finish_delta(),
    ]
    first = {"function": {"index": 0, "name": "find", "arguments": {"a": 1}}}
    second = {"function": {"index": 1, "name": "clock", "arguments": {}}}
    found = [each["message"] for each in lines(stream(renderer(), deltas))]
    assert found == [
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": "", "tool_calls": [first]},
        {"role": "assistant", "content": "", "tool_calls": [second]},
        {"role": "assistant", "content": ""},
    ]
    message = whole(renderer(), deltas)["message"]
    assert message == {"role": "assistant", "content": "I look.", "tool_calls": [first, second]}


def test_the_end_of_an_answer() -> None:
    assert (
        whole(renderer(), [text_delta("a"), finish_delta(FinishReason.LENGTH)])["done_reason"]
        == "length"
    )
    nothing = Usage(num_prompt_tokens=0, num_new_tokens=0)
    assert whole(renderer(), [finish_delta()], nothing)["done_reason"] == "load"
    assert lines(stream(renderer(), [finish_delta()], nothing))[-1]["done_reason"] == "load"


def test_every_line_of_a_stream_that_waits_is_an_object() -> None:
    (line,) = lines(renderer().waiting)
    empty = {"message": {"role": "assistant", "content": ""}, "done": False}
    assert undated(line) == empty
    (line,) = lines(renderer(generate_fields).waiting)
    assert undated(line) == {"response": "", "done": False}


def test_log_probabilities() -> None:
    scores = [{"token": "A", "logprob": -0.5, "bytes": [65], "top_logprobs": []}]
    deltas = [scored_delta(65, "A"), finish_delta()]
    assert lines(stream(renderer(), deltas))[0]["logprobs"] == scores
    assert whole(renderer(), deltas)["logprobs"] == scores


def test_errors() -> None:
    error = ApiError(400, "no", param="options.top_k")
    assert json.loads(error_json(error)) == {"error": "no"}
    assert lines(renderer().failed(error)) == [{"error": "no"}]


@pytest.mark.slow
@pytest.mark.parametrize("is_call", [False, True])
def test_a_long_answer_takes_time_in_proportion(is_call: bool) -> None:
    def prepared(count: int) -> Callable[[], object]:
        pieces = [
            arguments_delta(0, "x" * 20) if is_call else text_delta("x" * 20) for _ in range(count)
        ]
        return partial(
            whole, renderer(), [tool_call_delta(0, "find"), *pieces, finish_delta()], USAGE
        )

    assert_in_proportion(prepared, 4_000)
