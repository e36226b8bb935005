"""The official client, unmodified, against the address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from support.http.api_server import RunningApi
from support.http.toy_gateway import (
    CREATED,
    END_OF_TEXT,
    MODEL,
    ToyTokenizer,
    expected_text,
    expected_tokens,
    toy_logprob,
)

from potluck import grammars
from potluck.errors import EngineError
from potluck.types.deployment import DeploymentState

CHAT_PROMPT = "user:hello\nassistant:"


@pytest.fixture
def api(running: RunningApi) -> Iterator[RunningApi]:
    running.gateway.live.clear()
    status = running.gateway.status
    yield running
    running.gateway.status = status
    running.gateway.failure_after = None


@pytest.fixture(scope="module")
def client(running: RunningApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as client:
        yield client


def text_of_tokens(seed: int, count: int, prompt: str = CHAT_PROMPT) -> list[int]:
    return expected_tokens(list(prompt.encode()), seed, count)


def test_models(api: RunningApi, client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert (listed.id, listed.object, listed.created) == (MODEL, "model", CREATED)
    assert client.models.retrieve(MODEL) == listed
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_chat(api: RunningApi, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=12, seed=5
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.content == expected_text(CHAT_PROMPT, 5, 12)
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(CHAT_PROMPT)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == len(CHAT_PROMPT) + 12


def test_streamed_chat_is_the_same_text(api: RunningApi, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_completion_tokens=40,
        seed=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    contents = [chunk.choices[0].delta.content for chunk in chunks[1:-2]]
    assert all(contents)
    assert "".join(filter(None, contents)) == expected_text(CHAT_PROMPT, 6, 40)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-2].choices[0].delta.content is None
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


def test_the_model_may_end_its_text(api: RunningApi, client: openai.OpenAI) -> None:
    seed = next(seed for seed in range(10_000) if END_OF_TEXT in text_of_tokens(seed, 20) if seed)
    tokens = text_of_tokens(seed, 20)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        seed=seed,
        logprobs=True,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == ToyTokenizer().decode(tokens)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == len(tokens) - 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_and_the_sequence(
    api: RunningApi, client: openai.OpenAI, stream: bool
) -> None:
    whole = expected_text("go", 3, 60)
    stop = whole[30:33]
    expected = whole[: whole.index(stop)]
    if stream:
        *chunks, last = client.completions.create(
            model=MODEL,
            prompt="go",
            seed=3,
            max_tokens=900,
            stop=[stop, "zz"],
            stream=True,
            stream_options={"include_usage": True},
        )
        text = "".join(chunk.choices[0].text for chunk in chunks)
        reason, usage = chunks[-1].choices[0].finish_reason, last.usage
    else:
        answer = client.completions.create(
            model=MODEL, prompt="go", seed=3, max_tokens=900, stop=stop
        )
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
        usage = answer.usage
    assert (text, reason) == (expected, "stop")
    assert usage is not None
    assert usage.completion_tokens < 60
    assert api.gateway.num_used_blocks == 0


def test_several_choices_have_seeds_that_count_up(api: RunningApi, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], n=3, seed=7, max_tokens=5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [
        expected_text(CHAT_PROMPT, seed, 5) for seed in (7, 8, 9)
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(CHAT_PROMPT)
    assert answer.usage.completion_tokens == sum(len(text_of_tokens(s, 5)) for s in (7, 8, 9))


def test_streamed_choices_are_told_apart(api: RunningApi, client: openai.OpenAI) -> None:
    texts = {0: "", 1: "", 2: "", 3: ""}
    reasons = {}
    for chunk in client.completions.create(
        model=MODEL, prompt=["ab", "cd"], n=2, seed=2, max_tokens=30, stream=True
    ):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason is not None:
            reasons[choice.index] = choice.finish_reason
    assert texts == {
        0: expected_text("ab", 2, 30),
        1: expected_text("ab", 3, 30),
        2: expected_text("cd", 2, 30),
        3: expected_text("cd", 3, 30),
    }
    assert sorted(reasons) == [0, 1, 2, 3]


def test_chat_logprobs(api: RunningApi, client: openai.OpenAI) -> None:
    tokens = text_of_tokens(4, 6)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        seed=4,
        max_tokens=6,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [each.logprob for each in logprobs.content] == list(map(toy_logprob, tokens))
    assert [bytes(each.bytes or []) for each in logprobs.content] == [
        ToyTokenizer().token_bytes(token) for token in tokens
    ]
    for each in logprobs.content:
        assert [top.token for top in each.top_logprobs] == [" w300", " w301"]
        assert [top.logprob for top in each.top_logprobs] == [-3.0, -3.01]


def test_streamed_logprobs_are_the_same(api: RunningApi, client: openai.OpenAI) -> None:
    tokens = text_of_tokens(4, 30)
    found = []
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        seed=4,
        max_tokens=30,
        logprobs=True,
        stream=True,
    ):
        logprobs = chunk.choices[0].logprobs
        found += (logprobs.content or []) if logprobs else []
    assert [each.logprob for each in found] == list(map(toy_logprob, tokens))
    assert found[0].top_logprobs == []


def test_completion_logprobs(api: RunningApi, client: openai.OpenAI) -> None:
    tokens = text_of_tokens(1, 8, "go")
    answer = client.completions.create(model=MODEL, prompt="go", seed=1, max_tokens=8, logprobs=1)
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.token_logprobs == list(map(toy_logprob, tokens))
    assert logprobs.text_offset is not None
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)
    assert logprobs.top_logprobs[0][" w300"] == -3.0
    assert logprobs.tokens[0] in logprobs.top_logprobs[0]


def test_extensions_reach_the_sequence(api: RunningApi, client: openai.OpenAI) -> None:
    client.completions.create(
        model=MODEL,
        prompt=[5, 6, 600],
        max_tokens=1,
        logit_bias={"7": -100},
        presence_penalty=0.5,
        frequency_penalty=0.25,
        user="somebody",
        extra_body={"top_k": 9, "min_p": 0.05, "repetition_penalty": 1.2},
    )
    (live,) = api.gateway.live
    assert live.request.prompt_tokens == (5, 6, 600)
    assert [token.token for token in live.committed] == expected_tokens(
        [5, 6, 600], live.request.sampling.seed, 1
    )
    sampling = live.request.sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (9, 0.05, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.25)
    assert sampling.logit_bias == ((7, -100.0),)


def test_the_form_of_an_answer_goes_on_as_a_grammar(api: RunningApi, client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": schema, "strict": True},
                }
            },
            grammars.json_schema(schema),
        ),
        ({"response_format": {"type": "json_object"}}, grammars.json_object()),
        ({"extra_body": {"structured_outputs": {"json": schema}}}, grammars.json_schema(schema)),
        ({"extra_body": {"structured_outputs": {"regex": "[ab]+"}}}, grammars.regex("[ab]+")),
        ({"extra_body": {"structured_outputs": {"choice": ["a"]}}}, grammars.choice(["a"])),
        ({"extra_body": {"guided_json": json.dumps(schema)}}, grammars.json_schema(schema)),
        ({"extra_body": {"guided_regex": "a"}}, grammars.regex("a")),
        ({"extra_body": {"guided_choice": ["a", "b"]}}, grammars.choice(["a", "b"])),
        ({"extra_body": {"guided_grammar": 'root ::= "a"'}}, grammars.ebnf('root ::= "a"')),
    ]
    for given, grammar in cases:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=2, **given
        )
        assert api.gateway.live[-1].request.grammar == grammar
    client.completions.create(
        model=MODEL, prompt="x", max_tokens=2, extra_body={"guided_regex": "a"}
    )
    assert api.gateway.live[-1].request.grammar == grammars.regex("a")
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        max_tokens=2,
        response_format={"type": "text"},
    )
    assert api.gateway.live[-1].request.grammar is None


def test_errors_are_the_clients_own_kinds(api: RunningApi, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}},
            },
        )
    assert refused.value.param == "response_format"
    assert "uniqueItems" in refused.value.message
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x" * 2000}]
        )
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as unused:
        client.completions.create(model=MODEL, prompt="x", stream_options={"include_usage": True})
    assert unused.value.param == "stream_options"


@pytest.mark.parametrize(("ready_in_seconds", "retry_after"), [(None, 10), (6.2, 7), (0.0, 1)])
def test_a_request_whose_wait_is_over_says_why_and_when_to_come_again(
    api: RunningApi, client: openai.OpenAI, ready_in_seconds: float | None, retry_after: int
) -> None:
    api.gateway.status = replace(
        api.gateway.status,
        state=DeploymentState.DEGRADED,
        reason="node b is lost",
        ready_in_seconds=ready_in_seconds,
    )
    api.gateway.failure_after = (0, EngineError("3 GiB are missing", hint="add a node"))
    with pytest.raises(openai.InternalServerError, match="3 GiB are missing") as error:
        client.completions.create(model=MODEL, prompt="x")
    assert error.value.status_code == 503
    assert error.value.code == "model_not_ready"
    assert error.value.response.headers["retry-after"] == str(retry_after)
    shown = client.models.retrieve(MODEL).model_extra
    assert shown is not None
    assert shown.pop("default_sampling")
    assert shown == {
        "type": "model",  # of Anthropic's clients
        "display_name": MODEL,
        "created_at": "2023-11-14T22:13:20+00:00",
        "context_tokens": 1024,
        "state": "degraded",
        "reason": "node b is lost",
    }


def test_a_lost_stage_is_a_503_before_the_first_token(
    api: RunningApi, client: openai.OpenAI
) -> None:
    api.gateway.failure_after = (0, EngineError("the edge to node b is gone"))
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="edge to node b") as error:
            client.completions.create(model=MODEL, prompt="x", stream=stream)
        assert error.value.status_code == 503
        assert (error.value.type, error.value.code) == ("server_error", "service_unavailable")
        assert error.value.response.headers["retry-after"] == "1"
    assert api.gateway.num_used_blocks == 0


def test_a_stage_lost_in_a_stream_is_an_error_event(api: RunningApi, client: openai.OpenAI) -> None:
    api.gateway.failure_after = (3, EngineError("the edge to node b is gone"))
    stream = client.completions.create(
        model=MODEL, prompt="x", seed=1, max_tokens=50, n=2, stream=True
    )
    chunks = iter(stream)
    assert next(chunks).choices[0].finish_reason is None
    with pytest.raises(openai.APIError, match="edge to node b"):
        list(chunks)
    assert api.gateway.num_used_blocks == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_of_ours_is_a_500_without_details(
    api: RunningApi, client: openai.OpenAI, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    api.gateway.failure_after = (2 if stream else 0, RuntimeError("secret detail"))
    with pytest.raises(openai.APIError) as error:
        list(client.completions.create(model=MODEL, prompt="x", seed=1, stream=stream))
    assert "secret detail" not in str(error.value)
    assert error.value.code == "internal_error"
    assert "secret detail" in caplog.text


def test_what_a_client_says_beside_the_question_changes_nothing(
    api: RunningApi, client: openai.OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": None},
            {"role": "user", "name": "Ann", "content": "well?"},
        ],
        max_tokens=12,
        seed=5,
        metadata={"run": "7"},
        store=True,
        service_tier="flex",
        prediction={"type": "content", "content": "hello"},
        parallel_tool_calls=False,
        prompt_cache_key="key",
        prompt_cache_retention="24h",
        safety_identifier="hash",
        user="somebody",
        verbosity="low",
    )
    assert raw.status_code == 200
    prompt = "user:hello\nassistant:\nAnn:well?\nassistant:"
    assert raw.parse().choices[0].message.content == expected_text(prompt, 5, 12)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=12,
        seed=5,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": True},
        metadata={"run": "7"},
    )
    chunks = list(stream)
    assert chunks[-1].usage is not None
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == expected_text(CHAT_PROMPT, 5, 12)


def test_an_answer_that_is_sent_back_is_continued(api: RunningApi, client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "hello"}
    first = client.chat.completions.create(model=MODEL, messages=[question], max_tokens=3, seed=5)
    begun: Any = first.choices[0].message.model_dump()
    prompt = f"{CHAT_PROMPT}{begun['content']}"
    answer = client.chat.completions.create(
        model=MODEL, messages=[question, begun], max_tokens=12, seed=5
    )
    assert answer.choices[0].message.content == expected_text(prompt, 5, 12)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[question, begun],
        max_tokens=12,
        seed=5,
        extra_body={"continue_final_message": False},
    )
    assert answer.choices[0].message.content == expected_text(f"{prompt}\nassistant:", 5, 12)


def test_a_prompt_that_is_given_back(api: RunningApi, client: openai.OpenAI) -> None:
    for prompt in ("one €", list("one €".encode())):
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=5, seed=3, echo=True
        )
        assert answer.choices[0].text == "one €" + expected_text("one €", 3, 5)
        assert answer.choices[0].logprobs is None
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 5)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_log_probabilities_of_a_prompt(
    api: RunningApi, client: openai.OpenAI, max_tokens: int
) -> None:
    """As evaluation harnesses ask for them: several prompts as tokens, scored from the second."""
    prompts = [list(b"one two"), list(b"three"), [65]]
    answer = client.completions.create(
        model=MODEL,
        prompt=prompts,
        max_tokens=max_tokens,
        temperature=0,
        seed=1234,
        logprobs=1,
        echo=True,
    )
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        tokens = prompt + expected_tokens(prompt, 1234, max_tokens)
        assert choice.text == ToyTokenizer().decode(tokens)
        assert choice.finish_reason == "length"
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens == [ToyTokenizer().decode([token]) for token in tokens]
        scores: list[float | None] = [None, *map(toy_logprob, tokens[1:])]
        assert logprobs.token_logprobs == scores
        assert logprobs.top_logprobs is not None
        assert [top and len(top) for top in logprobs.top_logprobs] == [
            None,
            *[2] * (len(tokens) - 1),
        ]
        assert logprobs.text_offset is not None
        starts = [len(ToyTokenizer().decode(tokens[:index])) for index in range(len(tokens))]
        assert logprobs.text_offset == starts
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 13
    assert answer.usage.completion_tokens == 3 * max_tokens


def test_a_streamed_prompt_with_log_probabilities(api: RunningApi, client: openai.OpenAI) -> None:
    arguments: Any = {
        "model": MODEL,
        "prompt": "one two " * 50,  # more than the toy computes in a step
        "max_tokens": 4,
        "seed": 3,
        "logprobs": 2,
        "echo": True,
    }
    whole = client.completions.create(**arguments)
    chunks = list(client.completions.create(**arguments, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.choices[0].text.startswith(arguments["prompt"])
    assert whole.choices[0].logprobs is not None
    parts = [each for chunk in chunks if (each := chunk.choices[0].logprobs) is not None]
    assert [each for part in parts for each in part.tokens or ()] == whole.choices[
        0
    ].logprobs.tokens
    assert [each for part in parts for each in part.token_logprobs or ()] == (
        whole.choices[0].logprobs.token_logprobs
    )
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_end_of_a_text_counts_where_the_prompt_is_scored(
    api: RunningApi, client: openai.OpenAI
) -> None:
    """Harnesses take the last token away, and must not lose one of the prompt."""
    prompt = list(b"hello")
    seed = next(s for s in range(10_000) if expected_tokens(prompt, s, 1) == [END_OF_TEXT])
    answer = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=1, seed=seed, logprobs=1, echo=True
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("hello", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [*"hello", ""]


def test_a_failure_before_the_first_token_has_its_status_with_an_echo_too(
    api: RunningApi, client: openai.OpenAI
) -> None:
    api.gateway.failure_after = (0, EngineError("a stage was lost"))
    for logprobs in (None, 1):
        with pytest.raises(openai.InternalServerError) as error:
            client.completions.create(
                model=MODEL, prompt="hello", echo=True, logprobs=logprobs, stream=True
            )
        assert error.value.status_code == 503
