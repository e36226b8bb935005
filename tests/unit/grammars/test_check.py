"""Grammars that cannot be used, and those that are meant to do harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.errors import ParameterError
from potluck.grammars import build
from potluck.grammars.check import GrammarChecker
from potluck.grammars.limits import MAX_GRAMMAR_BYTES


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


def refused(checker: GrammarChecker, grammar: str) -> str:
    with pytest.raises(ParameterError) as error:
        checker.check(grammar, parameter="response_format")
    assert error.value.name == "response_format"
    assert "\n" not in error.value.message
    return error.value.message


def test_good_grammars_pass(checker: GrammarChecker) -> None:
    for grammar in [
        build.json_object(),
        build.json_schema({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}),
        build.regex("(a|b)*a(a|b){15}c"),
        build.choice(["a", "b"]),
        build.ebnf('root ::= "a"'),
    ]:
        checker.check(grammar)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "object", "if": {}, "then": {}}, '"if", "then"'),
        ({"type": "object", "properties": {"x": {"contains": {}}}}, "contains"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "format": "binary"}, '"format": "binary"'),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"oneOf": [{"type": "object"}, {"type": "object"}]}, '"oneOf"'),
        ({"$ref": "http://example.org/x"}, '"$ref"'),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"enum": []}, "nsatisfiable"),
        (False, "nsatisfiable"),
    ],
)
def test_what_is_not_supported_is_named(
    checker: GrammarChecker, schema: dict[str, object] | bool, message: str
) -> None:
    assert message in refused(checker, build.json_schema(schema))


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (build.lark("start: start"), "no text matches"),
        (build.lark("start: <nope>"), "<nope>"),
        (build.lark("start: /(/"), "unclosed group"),
        (build.lark("start: @other"), "@other"),
        (build.lark("begin: /a/"), "start"),
        (build.regex("a(?!b)"), "look-around"),
        ("start: /a/", "form"),
        ('{"grammars": []}', "form"),
        ("[" * 200_000, "form"),
    ],
)
def test_broken_grammars_are_explained(checker: GrammarChecker, grammar: str, message: str) -> None:
    assert message in refused(checker, grammar)


def chain(length: int) -> str:
    links: dict[str, object] = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(length)
    }
    end = {f"d{length}": {"type": "string"}}
    return build.json_schema({"$ref": "#/$defs/d0", "$defs": {**links, **end}})


HOSTILE = {
    "a chain of references": chain(2000),
    "a chain of rules": build.lark(
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(6000)) + '\nr6000: "a"'
    ),
    "a chain of terminals": build.lark(
        "start: R0\n" + "\n".join(f'R{i}: R{i + 1} "x"' for i in range(8000)) + '\nR8000: "a"'
    ),
    "doubled terminals": build.lark(
        "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)) + '\nR40: "a"'
    ),
    "many items": build.json_schema({"type": "array", "minItems": 10**9}),
    "many conjunctions": build.json_schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}": {"const": k}}} for k in range(10)]}
                for i in range(8)
            ]
        }
    ),
    "deep brackets": build.lark("start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
    "a deep pattern": build.regex("(" * 100_000 + "a" + ")" * 100_000),
    "a deep schema": build.lark("start: %json " + '{"items":' * 20_000 + "{}" + "}" * 20_000),
    "a large text": build.choice(["x" * MAX_GRAMMAR_BYTES]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_and_harm_nothing(checker: GrammarChecker, name: str) -> None:
    refused(checker, HOSTILE[name])
    checker.check(build.choice(["a"]))


def test_verdicts_are_remembered(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = build.json_schema({"type": "array", "contains": {}})
    first = refused(checker, bad)
    checker.check(build.choice(["remembered"]))
    monkeypatch.setattr(checker, "_ask", None)
    assert refused(checker, bad) == first
    checker.check(build.choice(["remembered"]))


def test_control_tokens_may_be_named(checker: GrammarChecker) -> None:
    grammar = build.lark(f"start: <|im_end|> {build.control_token('[TOOL]')}")
    checker.check(grammar, control_tokens=("<|im_end|>", "[TOOL]"))
    with pytest.raises(ParameterError, match=r"im_end"):
        checker.check(grammar)


def test_a_child_that_ended_is_replaced() -> None:
    checker = GrammarChecker()
    checker.check(build.choice(["a"]))
    child = checker._child
    assert child is not None
    assert child._process.stdin is not None
    with Path(os.devnull).open("wb") as nowhere:  # it ends as after a while without work
        os.dup2(nowhere.fileno(), child._process.stdin.fileno())
    checker.check(build.choice(["b"]))
    assert checker._child is not child
    checker.close()
    checker.close()
    checker.check(build.choice(["c"]))
    checker.close()


def test_several_threads_may_check(checker: GrammarChecker) -> None:
    problems: list[ParameterError] = []

    def check(number: int) -> None:
        try:
            for each in range(20):
                checker.check(build.choice([f"{number} {each}"]))
        except ParameterError as error:
            problems.append(error)

    threads = [threading.Thread(target=check, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_request_is_one_line() -> None:
    assert "\n" not in json.dumps({"grammar": build.lark('start: "a"\n')})


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}},
        {
            "anyOf": [
                {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20)}}
                for _ in range(200)
            ]
        },
    ],
)
def test_what_fails_after_the_first_tokens_is_refused(
    checker: GrammarChecker, schema: dict[str, object]
) -> None:
    assert "too complex" in refused(checker, build.json_schema(schema))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "exit_code"),
    [("time.sleep(1)", 0), ("all(iter(lambda: True, False))", -signal.SIGPROF)],
)
def test_only_time_in_which_it_runs_counts(work: str, exit_code: int) -> None:
    """On a busy machine a child may wait for a CPU for longer than a check may take."""
    program = f"""
import time
from potluck.grammars import check_child
check_child.MAX_CHECK_SECONDS = 0.5
check_child._problem = lambda *_: {work}
check_child.main()
"""
    request = json.dumps({"grammar": "", "control_tokens": []})
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    assert child.returncode == exit_code, child.stderr
