"""Bodies and parameters: each is taken, or refused by name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.toy_gateway import CONTEXT_TOKENS, MODEL, ToyGateway

from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, to_api_error
from potluck.api.parameters import Job, chat_job, completion_job
from potluck.api.schema import (
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETION,
    NEUTRAL_MESSAGE,
    parse_chat,
    parse_completion,
)
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
from potluck.types.step import SamplingParams

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
    return chat_job(parse_chat(json.dumps(body).encode()), served, ApiLimits())


def complete(served: ServedModel, limits: ApiLimits | None = None, **fields: Any) -> Job:
    body = {"model": MODEL, "prompt": "hello", **fields}
    return completion_job(
        parse_completion(json.dumps(body).encode()), served, limits or ApiLimits()
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
    ]
    (request,) = chat(model, messages=messages).requests
    assert bytes(request.prompt_tokens) == b"system:be kind\nuser:ab\nassistant:c\nassistant:"


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
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
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
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "user", "content": "x", "name": "y"}]}, "messages[1].name"),
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
        ({"echo": True}, "echo"),
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
    for name, values in NEUTRAL_CHAT.items():
        for value in values:
            assert chat(model, **{name: value}).requests
        with pytest.raises(ApiError) as error:
            chat(model, **{name: {"no": "neutral value"}})
        assert (error.value.param, error.value.code) == (name, "unsupported_parameter")
    for name, values in NEUTRAL_COMPLETION.items():
        for value in values:
            fields: dict[str, Any] = {name: value}
            assert complete(model, **fields).requests
    for name, values in NEUTRAL_MESSAGE.items():
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
    assert json.loads(answer.encoded()) == {
        "error": {
            "message": "a stage was lost (ask again)",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }
    }
    assert to_api_error(table[4][0]).headers == {"Retry-After": "7"}
