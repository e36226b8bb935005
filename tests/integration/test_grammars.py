"""Answers that match grammars, from models in this process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.processes.command import run_command

from potluck import grammars
from potluck.errors import ParameterError
from potluck.local import Model
from potluck.types.sequence import FinishReason
from potluck.types.text import ChatMessage, Tool

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "pages": {"type": "integer", "minimum": 1, "maximum": 900},
        "kinds": {"type": "array", "items": {"enum": ["sad", "funny", "long"]}, "maxItems": 3},
        "author": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "born": {"type": ["integer", "null"]},
            },
            "required": ["name", "born"],
            "additionalProperties": False,
        },
    },
    "required": ["title", "pages", "kinds", "author"],
    "additionalProperties": False,
}
GRAMMARS = {
    "book": grammars.json_schema(BOOK),
    "digits": grammars.regex("[0-9]{3}-[0-9]{2}"),
    "choice": grammars.choice(["yes", "no", "may be"]),
    "sum": grammars.ebnf('root ::= term ("+" term){2}\nterm ::= [1-9] [0-9]?'),
}


def texts(model: Model, seeds: range) -> list[tuple[str, str]]:
    """What all grammars give with all seeds, at once."""

    def text(name: str, seed: int) -> tuple[str, str]:
        generation = model.generate(
            f"Once upon a time {name}",
            grammar=GRAMMARS[name],
            max_tokens=250,
            temperature=1.0,
            top_p=1.0,
            seed=seed,
        )
        result = generation.result()
        assert result.finish_reason is FinishReason.STOP, result.text
        return name, result.text

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(text, name, seed) for name in GRAMMARS for seed in seeds]
        return [job.result() for job in jobs]


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, str]]:
    with Model.open("demo") as model:
        return texts(model, range(6))


def test_every_text_matches_its_grammar(expected: list[tuple[str, str]]) -> None:
    for name, text in expected:
        if name == "book":
            jsonschema.validate(json.loads(text), BOOK)
        elif name == "digits":
            assert len(text) == 6
            assert text.replace("-", "").isdigit()
        elif name == "choice":
            assert text in ("yes", "no", "may be")
        else:
            assert all(1 <= int(term) <= 99 for term in text.split("+"))
    assert len({text for name, text in expected if name == "book"}) > 3


@pytest.mark.parametrize(("stages", "cache_tokens"), [(2, 512), (3, 4096)])
def test_texts_do_not_depend_on_stages_and_preemption(
    expected: list[tuple[str, str]], stages: int, cache_tokens: int
) -> None:
    """In a small cache sequences are preempted, and replayed later."""
    with Model.open("demo", stages=stages, context_tokens=512, cache_tokens=cache_tokens) as model:
        assert texts(model, range(6)) == expected


def test_a_chat_may_have_a_grammar() -> None:
    with Model.open("demo") as model:
        messages = [ChatMessage(role="user", content="Do you like stories?")]
        answer = model.chat(messages, grammar=GRAMMARS["choice"], seed=1).result()
        assert answer.text in ("yes", "no", "may be")


def test_log_probabilities_are_those_without_the_grammar() -> None:
    """Masks change what is chosen, and not what the model says of it."""
    with Model.open("demo") as model:
        free = model.generate("One", max_tokens=1, temperature=0.0, logprobs=True, top_logprobs=20)
        top = {each.token: each.logprob for each in free.result().pieces[0].top}
        second = sorted(top, key=lambda token: -top[token])[1]
        text = model.tokenizer.decode([second])
        formed = model.generate(
            "One",
            max_tokens=1,
            temperature=0.0,
            logprobs=True,
            grammar=grammars.choice([text]),
        )
        piece = formed.result().pieces[0]
        assert piece.logprob == top[piece.token]


def test_a_grammar_that_cannot_be_used_is_refused_before_it_is() -> None:
    with Model.open("demo") as model:
        with pytest.raises(ParameterError, match="uniqueItems"):
            model.generate("x", grammar=grammars.json_schema({"uniqueItems": True}))
        with pytest.raises(ParameterError, match="serialized form"):
            model.generate("x", grammar="start: /a/")
        assert model.generate("x", grammar=GRAMMARS["choice"]).result().text


def test_the_command_line_takes_schemas_and_grammars(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "sum.gbnf"
    schema.write_text(json.dumps(BOOK))
    grammar.write_text('root ::= "1+" [2-4]')
    ask = ("run", "demo", "-p", "x", "--seed", "2")
    printed = run_command(*ask, "--json-schema", str(schema))
    assert printed.returncode == 0, printed.stderr
    jsonschema.validate(json.loads(printed.stdout), BOOK)
    printed = run_command(*ask, "--grammar", str(grammar))
    assert printed.stdout.strip() in ("1+2", "1+3", "1+4")
    schema.write_text('{"not": {}}')
    for arguments, message in (
        (["--json-schema", str(schema)], '"not"'),
        (["--json-schema", str(schema), "--grammar", str(grammar)], "cannot be used together"),
        (["--json-schema", str(tmp_path / "none")], "cannot read"),
        (["--json-schema", str(grammar)], "not valid JSON"),
    ):
        printed = run_command(*ask, *arguments)
        assert printed.returncode == 2
        assert message in printed.stderr


CLOCK = Tool(
    name="clock",
    description="Tells the time.",
    parameters={
        "type": "object",
        "properties": {"zone": {"enum": ["UTC", "CET"]}},
        "required": ["zone"],
        "additionalProperties": False,
    },
)


def test_tools_are_called() -> None:
    question = ChatMessage(role="user", content="How late is it?")
    with Model.open("demo") as model:
        options: dict[str, Any] = {"max_tokens": 120, "temperature": 1.0, "seed": 3}
        for choice in ("required", "clock"):
            with model.chat(
                [question],
                tools=[CLOCK, replace(CLOCK, name="map")],
                tool_choice=choice,
                parallel_tool_calls=False,
                **options,
            ) as generation:
                result = generation.result()
            (call,) = result.tool_calls
            assert choice in ("required", call.name)
            jsonschema.validate(json.loads(call.arguments), CLOCK.parameters)
            assert (result.text, result.reasoning) == ("", "")
        answered = [
            question,
            ChatMessage(role="assistant", content=result.text, tool_calls=result.tool_calls),
            ChatMessage(role="tool", content="noon", tool_call_id=call.call_id),
        ]
        plain = model.chat(answered, tools=[CLOCK], tool_choice="none", **options).result()
        assert plain.text
        assert plain.tool_calls == ()
        with pytest.raises(ParameterError, match="tool_choice is 'rm'"):
            model.chat([question], tools=[CLOCK], tool_choice="rm")
        with pytest.raises(ParameterError, match="the same name"):
            model.chat([question], tools=[CLOCK, CLOCK])
