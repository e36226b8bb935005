"""Bodies and parameters: each is taken, or refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.http.toy_gateway import CONTEXT_TOKENS, MODEL, ToyGateway

from potluck.api.config import ApiLimits
from potluck.api.dialects.openai import ignored_fields
from potluck.api.dialects.openai.bodies import parse_chat, parse_completion
from potluck.api.dialects.openai.rendering import error_json
from potluck.api.dialects.openai.requests import chat_request, completion_request
from potluck.api.errors import ApiError, to_api_error
from potluck.api.ignored_fields import InertFields
from potluck.api.jobs import Job, chat_job, text_job
from potluck.errors import (
    ChatTemplateError,
    EngineError,
    ModelNotFoundError,
    OverloadedError,
    ParameterError,
    PotluckError,
    PromptTooLongError,
)
from potluck.types.gateway import ServedModel
from potluck.types.output import ToolMode
from potluck.types.step import SamplingParams
from potluck.types.text import ChatMessage, ChatPrompt

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model() -> ServedModel:
    gateway = ToyGateway()
    gateway.sampling_defaults = {"temperature": 0.6, "top_k": 20}
    try:
        return asyncio.run(gateway.served_model(MODEL))
    finally:
        gateway.dispatcher.close()


def chat(served: ServedModel, **fields: Any) -> Job:
    body = {"model": MODEL, "messages": HELLO, **fields}
    return chat_job(chat_request(parse_chat(json.dumps(body).encode())), served, ApiLimits())


def complete(served: ServedModel, limits: ApiLimits | None = None, **fields: Any) -> Job:
    body = {"model": MODEL, "prompt": "hello", **fields}
    return text_job(
        completion_request(parse_completion(json.dumps(body).encode())),
        served,
        limits or ApiLimits(),
    )


def refused(error: pytest.ExceptionInfo[PotluckError]) -> ApiError:
    return to_api_error(error.value)


def test_every_parameter_reaches_the_sequence(model: ServedModel) -> None:
    job = chat(
        model,
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"5": -100, "17": 3.5},
        seed=41,
        n=2,
        logprobs=True,
        top_logprobs=3,
        stop=["a", "b"],
        user="somebody",
    )
    sampling = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias=((5, -100), (17, 3.5)),
        seed=41,
        logprobs=True,
        top_logprobs=3,
    )
    first, second = job.requests
    assert first.sampling == sampling
    assert second.sampling.seed == 42
    assert first.max_new_tokens == 9
    assert first.stop_tokens == {999}
    assert bytes(first.prompt_tokens) == b"user:hello\nassistant:"
    assert job.stop == ("a", "b")
    assert job.num_prompt_tokens == len("user:hello\nassistant:")


def test_what_is_left_out_comes_from_the_model_then_from_the_neutral_values(
    model: ServedModel,
) -> None:
    for nothing in ({}, {"temperature": None, "top_k": None, "n": None, "stop": None}):
        (request,) = chat(model, **nothing).requests
        assert request.sampling.temperature == 0.6
        assert request.sampling.top_k == 20
        assert request.sampling.top_p == 1.0
        assert request.max_new_tokens is None
    assert chat(model, top_k=0).requests[0].sampling.top_k is None
    assert chat(model, top_k=-1).requests[0].sampling.top_k is None
    assert complete(model).requests[0].max_new_tokens == 16
    seeds = {chat(model).requests[0].sampling.seed for _ in range(8)}
    assert len(seeds) == 8


def test_seeds_wrap_and_may_be_negative(model: ServedModel) -> None:
    seeds = [each.sampling.seed for each in chat(model, seed=-1, n=3).requests]
    assert seeds == [2**64 - 1, 0, 1]


def test_all_forms_of_prompts(model: ServedModel) -> None:
    forms: list[tuple[object, list[tuple[int, ...]]]] = [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([5, 600], [(5, 600)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ]
    for prompt, expected in forms:
        assert [each.prompt_tokens for each in complete(model, prompt=prompt).requests] == expected
    job = complete(model, prompt=["ab", "c"], n=2, seed=5)
    assert [(each.prompt_tokens, each.sampling.seed) for each in job.requests] == [
        ((97, 98), 5),
        ((97, 98), 6),
        ((99,), 5),
        ((99,), 6),
    ]
    assert job.num_prompt_tokens == 3


def test_contents_in_parts_and_all_roles(model: ServedModel) -> None:
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "audio": None},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "user", "content": "d", "name": "Ann"},
    ]
    (request,) = chat(model, messages=messages).requests
    assert bytes(request.prompt_tokens) == (
        b"developer:be kind\nuser:ab\nassistant:c\nassistant:\nassistant:\nAnn:d\nassistant:"
    )


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, b"assistant:Well"),
        ({"continue_final_message": True}, b"assistant:Well"),
        ({"continue_final_message": True, "add_generation_prompt": False}, b"assistant:Well"),
        ({"continue_final_message": False}, b"assistant:Well\nassistant:"),
        ({"add_generation_prompt": True}, b"assistant:Well\nassistant:"),
        ({"add_generation_prompt": False}, b"assistant:Well\n"),
        ({"add_generation_prompt": None, "continue_final_message": None}, b"assistant:Well"),
    ],
)
def test_a_last_message_of_the_assistant_is_continued_unless_the_client_says_otherwise(
    model: ServedModel, fields: dict[str, Any], end: bytes
) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    job = chat(model, messages=messages, **fields)
    assert bytes(job.requests[0].prompt_tokens) == b"user:hello\n" + end
    # A space before the first new word is part of the answer where a text goes on.
    assert job.starts_text == end.endswith(b"assistant:")


def test_another_last_message_is_continued_only_on_request(model: ServedModel) -> None:
    (request,) = chat(model, continue_final_message=True).requests
    assert bytes(request.prompt_tokens) == b"user:hello"
    (request,) = chat(model, add_generation_prompt=False).requests
    assert bytes(request.prompt_tokens) == b"user:hello\n"


def test_the_effort_reaches_the_chat_template(model: ServedModel) -> None:
    (request,) = chat(model, reasoning_effort="low").requests
    assert bytes(request.prompt_tokens) == b"effort:low\nuser:hello\nassistant:"


def test_a_prediction_is_for_drafts(model: ServedModel) -> None:
    def predicted(content: object) -> bytes:
        (request,) = chat(model, prediction={"type": "content", "content": content}).requests
        return bytes(request.prediction)

    assert predicted("hello") == b"hello"
    parts = [{"type": "text", "text": "hel", "cache_control": None}, {"type": "text", "text": "lo"}]
    assert predicted(parts) == b"hello"
    assert predicted("") == predicted([]) == b""
    assert predicted("x" * 100_000) == b""  # it could not be an answer
    (request,) = chat(model, prediction=None).requests
    assert request.prediction == ()


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def some_tools(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_choice_of_some_tools(mode: str) -> None:
    tools = {"tools": [WEATHER, CLOCK], "tool_choice": some_tools(mode, "clock")}
    body = {"model": "m", "messages": HELLO, **tools}
    use = chat_request(parse_chat(json.dumps(body).encode())).tool_use
    assert [tool.name for tool in use.tools] == ["clock"]
    assert (use.mode, use.name) == (ToolMode(mode), None)


HARMLESS_VALUES: dict[str, list[Any]] = {
    "metadata": [{}, {"run": "7", "note": "x" * 512}],
    "safety_identifier": ["hash"],
    "store": [True, False],
    "user": ["somebody"],
    "service_tier": ["auto", "default", "flex", "priority"],
    "prompt_cache_key": ["key"],
    "prompt_cache_options": [{"mode": "auto"}],
    "cache_prompt": [True, False],
    "id": ["msg_1"],
    "reasoning_details": [[{"type": "reasoning.text", "text": "Hm"}]],
    "timestamp": [1764460800, "2026-11-30T00:00:00Z"],
    "prefix": [True, False],
    "prompt_cache_retention": ["24h", "in_memory"],
    "verbosity": ["low", "medium", "high"],
    "include_obfuscation": [True, False],
    "cache_control": [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}],
    "prompt_cache_breakpoint": [{"mode": "explicit"}],
    "parsed": [{"city": "Oslo"}, [1], "x"],
    "parsed_arguments": [{"city": "Oslo"}],
}


def test_harmless_fields_change_nothing(model: ServedModel) -> None:
    def cases(others: InertFields) -> list[dict[str, Any]]:
        return [
            {name: value} for name in others.harmless for value in [None, *HARMLESS_VALUES[name]]
        ]

    plain_chat, plain_completion = chat(model, seed=1), complete(model, seed=1)
    for each in cases(ignored_fields.CHAT):
        assert chat(model, seed=1, **each) == plain_chat
    for each in cases(ignored_fields.COMPLETION):
        assert complete(model, None, seed=1, **each) == plain_completion
    for each in cases(ignored_fields.STREAM_OPTIONS):
        assert chat(model, seed=1, stream=True, stream_options=each) == plain_chat
    for each in cases(ignored_fields.MESSAGE):
        assert chat(model, seed=1, messages=[{**HELLO[0], **each}]) == plain_chat
    for each in cases(ignored_fields.PART):
        part = {"type": "text", "text": "hello", **each}
        assert chat(model, seed=1, messages=[{"role": "user", "content": [part]}]) == plain_chat
    plain_call = chat(model, seed=1, messages=_called({}))
    for each in cases(ignored_fields.CALLED_FUNCTION):
        assert chat(model, seed=1, messages=_called(each)) == plain_call


def _called(others: dict[str, Any]) -> list[dict[str, Any]]:
    """A chat in which a tool was called, with other fields of the call's function."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", **others}}
    return [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": {}}, "stop"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"temprature": 1}, "temprature"),
        ({"best_of": 2}, "best_of"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"user": 3}, "user"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [*HELLO, {"role": "user", "content": "x", "name": 1}]}, "messages[1].name"),
        ({"messages": [{"role": "user", "content": "x", "name": "y" * 65}]}, "messages[0].name"),
        ({"messages": [{"role": "system"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": {}}]}, "messages[0].content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]},
            "messages[0].role",
        ),
        ({"user": "x" * 513}, "user"),
        ({"metadata": {"x": 1}}, "metadata"),
        ({"metadata": {"x": "y" * 513}}, "metadata"),
        ({"metadata": {"x" * 65: "y"}}, "metadata"),
        ({"metadata": {str(i): "y" for i in range(17)}}, "metadata"),
        ({"store": "yes"}, "store"),
        ({"prediction": "x"}, "prediction"),
        ({"prediction": {"type": "text", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": "x", "more": 1}}, "prediction.more"),
        (
            {"prediction": {"type": "content", "content": [{"type": "image_url"}]}},
            "prediction.content[0].type",
        ),
        (
            {"prediction": {"type": "content", "content": [{"type": "text"}]}},
            "prediction.content[0].text",
        ),
        ({"service_tier": 1}, "service_tier"),
        ({"prompt_cache_key": "x" * 513}, "prompt_cache_key"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice.type"),
        (
            {"tools": [WEATHER], "tool_choice": some_tools("auto", "clock")},
            "tool_choice.allowed_tools.tools[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": [1]},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "cache_control": "x"}]},
            "messages[0].cache_control",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "x", "cache_control": {"a": {}}}],
                    }
                ]
            },
            "messages[0].content[0].cache_control",
        ),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]},
            "messages[0].content[0].y",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
    ],
)
def test_what_a_chat_cannot_have_is_refused_by_name(
    model: ServedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(PotluckError) as error:
        chat(model, **fields)
    answer = refused(error)
    assert (answer.status, answer.param) == (400, param)
    assert param.rsplit(".", 1)[-1].split("[")[0] in answer.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"messages": HELLO}, "messages"),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 17}, "prompt"),
        ({"prompt": ["x"] * 9, "n": 2}, "n"),
    ],
)
def test_what_a_completion_cannot_have_is_refused_by_name(
    model: ServedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(PotluckError) as error:
        complete(model, **fields)
    assert (refused(error).status, refused(error).param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": 10**400}, "temperature must be a number, not 2^1328 or more"),
        ({"seed": True}, "seed must be an integer, not true"),
        ({"n": 1.0}, "n must be an integer, not 1.0"),
        ({"stream": "yes"}, "stream must be true or false, not 'yes'"),
        ({"model": None}, "model must be a text, not null"),
        ({"stop": {}}, "stop must be a text or a list, not an object"),
        ({"logit_bias": {"1": 2, "x": "y"}}, "logit_bias.x must be a number, not 'y'"),
        ({"messages": [[]]}, "messages[0] must be an object, not a list"),
        ({"messages": [{}]}, "messages[0].role is required"),
        (
            {"messages": [{"role": "user", "x" * 70: 1}]},
            f"unknown parameter messages[0].{'x' * 64}",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type must be 'text', 'json_object' or 'json_schema', not 'xml'",
        ),
        ({"thinking": {}}, "thinking.type is required"),
        ({"thinking": 1}, "thinking must be true or false or an object, not 1"),
        ({"tool_choice": {}}, "tool_choice.type is required"),
        (
            {"tool_choice": {"type": []}},
            "tool_choice.type must be 'function' or 'allowed_tools', not a list",
        ),
        (
            {"tool_choice": some_tools("none")},
            "tool_choice.allowed_tools.mode must be 'auto' or 'required', not 'none'",
        ),
        (
            {"tool_choice": "any"},
            "tool_choice must be 'none', 'auto', 'required' or an object, not 'any'",
        ),
        # A field's name cannot pass for a place.
        ({"x` - at `$.n": 1}, "unknown parameter x` - at `$.n"),
        ({"x` - at `$.messages[9].y": 1}, "unknown parameter x` - at `$.messages[9].y"),
        (
            {"reasoning": {"x` - at `$.n": 1}},
            "unknown parameter reasoning.x` - at `$.n",
        ),
    ],
)
def test_a_refusal_says_what_is_expected_and_what_was_given(
    model: ServedModel, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as error:
        chat(model, **fields)
    assert error.value.message == message


def test_missing_fields_are_named() -> None:
    for body, param in (({"messages": HELLO}, "model"), ({"model": "x"}, "messages")):
        with pytest.raises(ApiError) as error:
            parse_chat(json.dumps(body).encode())
        assert error.value.param == param
        assert error.value.code == "missing_required_parameter"
    with pytest.raises(ApiError) as error:
        parse_completion(b'{"model": "x"}')
    assert error.value.param == "prompt"


def test_neutral_values_of_what_is_not_supported_are_accepted_and_others_named(
    model: ServedModel,
) -> None:
    for name, values in ignored_fields.CHAT.neutral.items():
        for value in values:
            assert chat(model, **{name: value}).requests
        with pytest.raises(ApiError) as error:
            chat(model, **{name: {"no": "neutral value"}})
        assert (error.value.param, error.value.code) == (name, "unsupported_parameter")
    for name, values in ignored_fields.COMPLETION.neutral.items():
        for value in values:
            fields: dict[str, Any] = {name: value}
            assert complete(model, **fields).requests
    for name, values in ignored_fields.MESSAGE.neutral.items():
        for value in values:
            assert chat(model, messages=[{"role": "user", "content": "x", name: value}]).requests


def test_the_limits_of_prompts(model: ServedModel) -> None:
    assert complete(model, prompt=[1] * (CONTEXT_TOKENS - 1)).requests
    with pytest.raises(PromptTooLongError):
        complete(model, prompt=[1] * CONTEXT_TOKENS)
    limits = ApiLimits(max_prompt_tokens=4)
    assert complete(model, limits, prompt="abcd").requests
    with pytest.raises(ApiError) as error:
        complete(model, limits, prompt="abcde")
    assert error.value.code == "context_length_exceeded"


def test_prompts_that_are_given_back(model: ServedModel) -> None:
    for echo, logprobs in ((None, 0), (False, 0), (True, None)):
        job = complete(model, echo=echo, logprobs=logprobs, n=2)
        assert not any(each.score_prompt for each in job.requests)
        assert job.echoes == (("hello" if echo else None,) * 2)
    job = complete(model, prompt=["ab", "c"], n=2, echo=True, logprobs=3, max_tokens=0)
    assert job.echoes == ("ab", "ab", "c", "c")
    assert all(each.score_prompt and each.max_new_tokens == 0 for each in job.requests)
    assert {each.sampling.top_logprobs for each in job.requests} == {3}
    assert complete(model, prompt=[97, 300], echo=True).echoes == ("a w300",)
    # A prompt that nothing is to follow may fill the context.
    assert complete(model, prompt=[1] * CONTEXT_TOKENS, echo=True, max_tokens=0).requests
    with pytest.raises(PromptTooLongError):
        complete(model, prompt=[1] * (CONTEXT_TOKENS + 1), echo=True, max_tokens=0)


def test_no_number_is_too_large_to_be_sent_on(model: ServedModel) -> None:
    (request,) = complete(model, max_tokens=10**18).requests
    assert request.max_new_tokens == CONTEXT_TOKENS


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b'"x"', b"null", b"\xff", b"[" * 100_000, b'{"a": NaN}']
)
def test_what_is_no_json_object_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        parse_chat(body)
    assert (error.value.status, error.value.code) == (400, "invalid_json")


def test_errors_have_the_status_that_clients_expect() -> None:
    table: list[tuple[PotluckError, int, str | None, str | None]] = [
        (ParameterError("top_p", "no"), 400, "invalid_value", "top_p"),
        (PromptTooLongError(9, 8), 400, "context_length_exceeded", "prompt"),
        (ChatTemplateError("no"), 400, "invalid_value", "prompt"),
        (ModelNotFoundError("no"), 404, "model_not_found", "model"),
        (OverloadedError("no", retry_after_seconds=7), 429, "rate_limit_exceeded", None),
        (EngineError("gone"), 503, "service_unavailable", None),
    ]
    for error, status, code, param in table:
        answer = to_api_error(error, prompt_param="prompt")
        assert (answer.status, answer.code, answer.param) == (status, code, param)
    answer = to_api_error(EngineError("a stage was lost", hint="ask again"))
    assert json.loads(error_json(answer)) == {
        "error": {
            "message": "a stage was lost (ask again)",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }
    }
    assert to_api_error(table[4][0]).headers == {"Retry-After": "7"}


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), (None, None)])
def test_thinking_is_left_to_the_template(
    model: ServedModel, effort: str | None, thinks: bool | None
) -> None:
    seen: list[object] = []

    def encode(messages: Sequence[ChatMessage], **options: Any) -> ChatPrompt:
        seen.append((options["thinks"], options["template_variables"]))
        return model.encode_chat(messages, **options)

    fields = {} if effort is None else {"reasoning_effort": effort}
    chat(replace(model, encode_chat=encode), chat_template_kwargs={"a": 1}, **fields)
    assert seen == [(thinks, {"a": 1})]


class TestFieldsOfOtherServers:
    def test_names_that_mean_the_same(self, model: ServedModel) -> None:
        for name in ("repetition_penalty", "repeat_penalty"):
            for request in (chat(model, **{name: 1.25}), complete(model, None, **{name: 1.25})):
                assert request.requests[0].sampling.repetition_penalty == 1.25

    @pytest.mark.parametrize(
        ("fields", "effort", "thinks"),
        [
            ({"enable_thinking": False}, None, False),
            ({"thinking": {"type": "enabled"}}, None, True),
            ({"thinking": {"type": "disabled"}}, None, False),
            ({"thinking": True, "reasoning_effort": "low"}, "low", True),
            ({"reasoning": {"effort": "high"}}, "high", True),
            ({"reasoning": {"enabled": False, "exclude": False}}, None, False),
            ({"reasoning": {"effort": "none"}, "reasoning_effort": "none"}, "none", False),
            ({"reasoning": None, "thinking": None}, None, None),
            ({"reasoning_effort": None, "reasoning": {"effort": "low"}}, "low", True),
            ({"enable_thinking": None, "thinking": False}, None, False),
        ],
    )
    def test_reasoning(
        self, fields: dict[str, Any], effort: str | None, thinks: bool | None
    ) -> None:
        body = {"model": MODEL, "messages": HELLO, **fields}
        request = chat_request(parse_chat(json.dumps(body).encode()))
        assert (request.reasoning_effort, request.thinks) == (effort, thinks)

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
            ({"thinking": {"type": "maybe"}}, "thinking.type"),
            ({"thinking": {"type": "enabled", "color": 1}}, "thinking.color"),
            ({"thinking": True, "enable_thinking": False}, "thinking"),
            ({"enable_thinking": True, "reasoning_effort": "none"}, "enable_thinking"),
            ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
            ({"reasoning": "high"}, "reasoning"),
        ],
    )
    def test_contradictions_are_refused(
        self, model: ServedModel, fields: dict[str, Any], param: str
    ) -> None:
        with pytest.raises(ApiError) as raised:
            chat(model, **fields)
        assert raised.value.param == param

    def test_json_objects_may_have_a_schema(self, model: ServedModel) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        own = chat(model, response_format={"type": "json_object", "schema": schema})
        usual = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        same = chat(model, response_format=usual)
        assert own.requests[0].grammar == same.requests[0].grammar
        with pytest.raises(ApiError, match="requires the type json_object"):
            chat(model, response_format={"type": "text", "schema": schema})
        both = {"type": "json_object", "schema": schema, "json_schema": usual["json_schema"]}
        with pytest.raises(ApiError, match="requires the type json_schema"):
            chat(model, response_format=both)

    def test_errors_have_the_clients_name(self, model: ServedModel) -> None:
        for name in ("repetition_penalty", "repeat_penalty"):
            with pytest.raises(ParameterError) as raised:
                chat(model, **{name: 0})
            assert raised.value.name == name

    def test_null_is_no_value_of_the_other_name(self, model: ServedModel) -> None:
        job = chat(model, repetition_penalty=None, repeat_penalty=1.25)
        assert job.requests[0].sampling.repetition_penalty == 1.25
