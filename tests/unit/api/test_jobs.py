"""From what is asked to sequences: grammars, parsers, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from support.http.toy_gateway import (
    CONTEXT_TOKENS,
    END_OF_TEXT,
    MODEL,
    VOCAB_SIZE,
    ToyGateway,
    toy_chat,
)

from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError
from potluck.api.jobs import chat_job, empty_job, text_job
from potluck.api.requests import ChatRequest, CompletionRequest
from potluck.api.tools import MAX_TOOLS, tool_use
from potluck.errors import ParameterError, PotluckError, PromptTooLongError
from potluck.types.gateway import ServedModel
from potluck.types.output import OutputParser, OutputPart, ToolMode, ToolUse
from potluck.types.text import ChatEnding, ChatMessage, ChatPrompt, Tool

LIMITS = ApiLimits()
FIND = Tool(name="find")
CLOCK = Tool(name="clock")


class NoParser:
    """A parser that finds nothing."""

    def push(self, text: str) -> Sequence[OutputPart]:
        return ()

    def finish(self, *, is_cut: bool = False) -> Sequence[OutputPart]:
        return ()


@dataclass
class RecordingFormat:
    """An output format that notes what it is asked for."""

    name: str = "recording"
    control_texts: frozenset[str] = frozenset({"<call>"})
    calls: list[tuple[str, ToolUse, str, str | None]] = field(default_factory=list)

    def parser(self, tool_use: ToolUse, *, prompt_end: str) -> OutputParser:
        self.calls.append(("parser", tool_use, prompt_end, None))
        return NoParser()

    def grammar(
        self, tool_use: ToolUse, *, prompt_end: str, response: str | None = None
    ) -> str | None:
        self.calls.append(("grammar", tool_use, prompt_end, response))
        return None if response is None else f"thoughts, then {response}"


@dataclass
class RecordingChat:
    """The toy's chat template, which notes what else it is given."""

    tools: Sequence[Tool] = ()
    thinks: bool | None = None
    variables: Mapping[str, object] = field(default_factory=dict)

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        ending: ChatEnding = ChatEnding.NEW_TURN,
        reasoning_effort: str | None = None,
        tools: Sequence[Tool] = (),
        thinks: bool | None = None,
        template_variables: Mapping[str, object] | None = None,
    ) -> ChatPrompt:
        self.tools = tools
        self.thinks = thinks
        self.variables = template_variables or {}
        return toy_chat(messages, ending=ending, reasoning_effort=reasoning_effort)


@pytest.fixture(scope="module")
def plain() -> ServedModel:
    gateway = ToyGateway()
    gateway.dispatcher.close()
    return asyncio.run(gateway.served_model(MODEL))


@pytest.fixture
def chat() -> RecordingChat:
    return RecordingChat()


@pytest.fixture
def output_format() -> RecordingFormat:
    return RecordingFormat()


@pytest.fixture
def model(plain: ServedModel, chat: RecordingChat, output_format: RecordingFormat) -> ServedModel:
    return replace(plain, encode_chat=chat, output_format=output_format)


def make_request(**fields: object) -> ChatRequest:
    messages = [ChatMessage(role="user", content="hi")]
    return ChatRequest(messages=messages, **fields)  # type: ignore[arg-type]


def refused(work: object) -> str | None:
    assert callable(work)
    with pytest.raises(PotluckError) as error:
        work()
    if isinstance(error.value, ParameterError):
        return error.value.name
    assert isinstance(error.value, ApiError)
    assert error.value.status == 400
    return error.value.param


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_tools_reach_the_template_the_grammar_and_the_parser(
    model: ServedModel, chat: RecordingChat, output_format: RecordingFormat, mode: ToolMode
) -> None:
    use = ToolUse(tools=(FIND, CLOCK), mode=mode)
    job = chat_job(make_request(tool_use=use), model, LIMITS)
    assert tuple(chat.tools) == (FIND, CLOCK)
    assert output_format.calls == [("grammar", use, "assistant:", None)]
    assert job.new_parser is not None
    job.new_parser()
    assert output_format.calls[-1] == ("parser", use, "assistant:", None)
    assert job.visible_control_texts == {"<call>"}
    assert job.grammar_param == "tools"


def test_tools_that_are_not_to_be_called_are_not_told(
    model: ServedModel, chat: RecordingChat
) -> None:
    chat_job(make_request(tool_use=ToolUse(tools=(FIND,), mode=ToolMode.NONE)), model, LIMITS)
    assert chat.tools == ()


def test_a_grammar_is_that_of_the_answer_within_the_output(model: ServedModel) -> None:
    job = chat_job(make_request(grammar="an object", grammar_param="format"), model, LIMITS)
    assert [each.grammar for each in job.requests] == ["thoughts, then an object"]
    assert job.grammar_param == "format"


def test_a_model_without_a_format_takes_grammars_and_no_tools(plain: ServedModel) -> None:
    job = chat_job(make_request(grammar="an object"), plain, LIMITS)
    assert job.requests[0].grammar == "an object"
    assert job.new_parser is None
    tools = (FIND,)
    assert (
        refused(lambda: chat_job(make_request(tool_use=ToolUse(tools=tools)), plain, LIMITS))
        == "tools"
    )
    unused = ToolUse(tools=tools, mode=ToolMode.NONE)
    assert chat_job(make_request(tool_use=unused), plain, LIMITS).new_parser is None


@pytest.mark.parametrize("thinks", [None, True, False])
def test_whether_to_think_reaches_the_template(
    model: ServedModel, chat: RecordingChat, thinks: bool | None
) -> None:
    chat_job(make_request(thinks=thinks, template_variables={"a": 1}), model, LIMITS)
    assert (chat.thinks, chat.variables) == (thinks, {"a": 1})


def test_choices_differ_by_their_seeds(model: ServedModel) -> None:
    job = chat_job(make_request(num_choices=3, seed=2**64 - 1), model, LIMITS)
    assert [each.sampling.seed for each in job.requests] == [2**64 - 1, 0, 1]
    assert {each.prompt_tokens for each in job.requests} == {tuple(b"user:hi\nassistant:")}
    assert job.num_prompt_tokens == len("user:hi\nassistant:")
    assert job.requests[0].stop_tokens == {END_OF_TEXT}


def test_what_is_asked_for_comes_before_what_the_model_recommends(plain: ServedModel) -> None:
    model = replace(plain, sampling_defaults={"temperature": 0.6, "top_k": 20})
    sampling = chat_job(make_request(sampling={"top_k": 0}), model, LIMITS).requests[0].sampling
    assert (sampling.temperature, sampling.top_k) == (0.6, None)


def test_no_sequence_is_needed_to_ask_whether_a_model_is_there(model: ServedModel) -> None:
    job = empty_job(model)
    assert (job.requests, job.num_prompt_tokens) == ((), 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_new_tokens": 0}, "max_tokens"),
        ({"num_choices": 0}, "n"),
        ({"num_choices": 17}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"sampling": {"temperature": -1}}, "temperature"),
        ({"sampling": {"top_p": 0}}, "top_p"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_is_refused_is_named(
    model: ServedModel, fields: dict[str, object], param: str
) -> None:
    assert refused(lambda: chat_job(make_request(**fields), model, LIMITS)) == param


def test_a_chat_without_messages_is_refused(model: ServedModel) -> None:
    empty = ChatRequest(messages=[])
    assert refused(lambda: chat_job(empty, model, LIMITS)) == "messages"


def test_a_model_without_logits_makes_no_text(plain: ServedModel) -> None:
    model = replace(plain, has_logits=False)
    assert refused(lambda: chat_job(make_request(), model, LIMITS)) == "model"
    text = CompletionRequest(prompts=["a"])
    assert refused(lambda: text_job(text, model, LIMITS)) == "model"


def test_prompts_leave_room_for_a_token(model: ServedModel) -> None:
    full = CompletionRequest(prompts=[[1] * (CONTEXT_TOKENS - 1)])
    assert text_job(full, model, LIMITS).num_prompt_tokens == CONTEXT_TOKENS - 1
    with pytest.raises(PromptTooLongError):
        text_job(replace(full, prompts=[[1] * CONTEXT_TOKENS]), model, LIMITS)
    small = ApiLimits(max_prompt_tokens=10)
    assert refused(lambda: text_job(full, model, small)) == "prompt"
    assert (
        refused(lambda: text_job(replace(full, prompts=[[VOCAB_SIZE]]), model, LIMITS)) == "prompt"
    )
    assert refused(lambda: text_job(replace(full, prompts=[[]]), model, LIMITS)) == "prompt"


def test_tools_have_plain_and_different_names() -> None:
    assert refused(lambda: tool_use([FIND, FIND])) == "tools[1].name"
    for name in ("", "a b", "ä", "x" * 129, 'a"', "a\n"):
        assert refused(lambda name=name: tool_use([Tool(name=name)])) == "tools[0].name"
    for name in ("a", "mcp__files__read", "ns.tool", "a:b/c-d", "x" * 128):
        assert tool_use([Tool(name=name)]).tools[0].name == name
    many = [Tool(name=f"t{number}") for number in range(MAX_TOOLS + 1)]
    assert len(tool_use(many[:-1]).tools) == MAX_TOOLS
    assert refused(lambda: tool_use(many)) == "tools"


def test_a_choice_of_tools_must_be_possible() -> None:
    assert refused(lambda: tool_use([], mode=ToolMode.REQUIRED)) == "tool_choice"
    named = {"mode": ToolMode.REQUIRED, "name": "clock"}
    assert refused(lambda: tool_use([FIND], **named)) == "tool_choice"  # type: ignore[arg-type]
    assert tool_use([CLOCK], **named) == ToolUse(tools=(CLOCK,), **named)  # type: ignore[arg-type]
