"""Bodies made to be costly or to deceive, against an agent with the demo model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from support.cluster.agents import AgentProcess, Fleet
from support.processes.waiting import done_within, eventually

SECONDS = 20
"""For any answer here, on a busy machine; a check of a grammar may take 3 s of CPU time."""

QUESTION = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with Fleet(tmp_path_factory.mktemp("hostile")) as fleet:
        agent = fleet.start(1).await_up()
        agent.deploy("demo")
        yield agent
        eventually(
            lambda: agent.metric("potluck_kv_blocks", model="demo", state="used") == 0,
            within=10,
            what="all blocks are free",
        )
        assert "Traceback" not in agent.log


@pytest.fixture(scope="module")
def http(agent: AgentProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=agent.url, timeout=SECONDS) as http:
        yield http


DEEP = {"DEEP": 1}
"""Becomes a schema so deep that Python's own library does not write it."""


def text_of(body: object) -> str:
    deep = '{"properties":{"a":' * 2000 + "true" + "}}" * 2000
    return json.dumps(body).replace(json.dumps(DEEP), deep)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def tool(name: str, parameters: object = None) -> dict[str, Any]:
    schema = parameters or {"type": "object", "properties": {"a": {"enum": ["x", name]}}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def of_schema(schema: object) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


HOSTILE: dict[str, dict[str, Any]] = {
    "1,000 properties": of_schema(
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}
    ),
    "many required properties": of_schema(
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "maxLength": 50} for n in range(900)},
            "required": [f"p{n}" for n in range(900)],
        }
    ),
    "20,000 values": of_schema({"enum": [f"value {n}" for n in range(20_000)]}),
    "nested 100 times": of_schema(nested(100)),
    "nested 2,000 times": of_schema(DEEP),
    "a schema of itself": of_schema({"$ref": "#"}),
    "branches of branches": of_schema({"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 300}),
    "a bomb of counts": {"guided_regex": "(((a{1,99}){1,99}){1,99}){1,99}"},
    "a bomb of states": {"guided_regex": "(.*a){30}.{500}"},
    "a bomb of doubt": {"guided_regex": "(x+x+)+y"},
    "a pattern in a schema": of_schema({"type": "string", "pattern": "^(([a-z]+)*)+$"}),
    "long texts": of_schema({"type": "string", "minLength": 10**9}),
    "a grammar without end": {"guided_grammar": "root ::= root root | root"},
    "a doubtful grammar": {"guided_grammar": 'root ::= root root root | "a" | ""'},
    "many choices": {"guided_choice": [f"choice {n}" * 20 for n in range(1000)]},
    "512 tools": {"tools": [tool(f"tool_{n}") for n in range(512)], "tool_choice": "required"},
    "a tool with a deep schema": {"tools": [tool("f", DEEP)], "tool_choice": "required"},
    "a tool with a regex bomb": {
        "tools": [tool("f", {"type": "string", "pattern": "(a{1,999}){1,999}"})],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize("what", HOSTILE)
def test_costly_grammars_harm_nobody(http: httpx2.Client, what: str) -> None:
    """They are answered or refused in time, and others are answered meanwhile."""
    body = {"model": "demo", "messages": QUESTION, "max_tokens": 4, **HOSTILE[what]}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/chat/completions", content=text_of(body))
        while not waiting.done():
            with done_within(2):
                assert http.get("/health").status_code == 200
            time.sleep(0.02)
    answer = waiting.result()
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert error["param"] or error["code"] == "invalid_json", answer.text
    plain = {"model": "demo", "messages": QUESTION, "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=plain).status_code == 200


def test_as_many_tools_as_are_allowed(http: httpx2.Client) -> None:
    for dialect, path, of in (
        ("openai", "/v1/chat/completions", tool),
        ("anthropic", "/v1/messages", lambda name: {"name": name, "input_schema": {}}),
    ):
        body: dict[str, Any] = {"model": "demo", "messages": QUESTION, "max_tokens": 2}
        body["tools"] = [of(f"t{n}") for n in range(513)]
        answer = http.post(path, json=body)
        assert answer.status_code == 400, dialect
        assert "512" in answer.text


@pytest.mark.parametrize(
    "name",
    ["", "a b", "x" * 129, "tool\n", "ｆｕｌｌ", "a\u0000", "<|end|>", '"}, {"name": "f', "é"],
)
def test_odd_names_of_tools_are_refused(http: httpx2.Client, name: str) -> None:
    body = {"model": "demo", "messages": QUESTION, "tools": [tool(name)], "max_tokens": 2}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"].startswith("tools")


@pytest.mark.parametrize(
    "control", ["<|end|>", "<|system|>", "<|eos|>", "<|bos|>", "<|assistant|>"]
)
def test_control_tokens_in_results_of_tools_are_text(http: httpx2.Client, control: str) -> None:
    """Whoever writes what a tool finds cannot end its turn, or begin another."""

    def tokens(text: str) -> list[int]:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
        call["function"] = {"name": "f", "arguments": json.dumps({"a": text})}
        messages = [
            *QUESTION,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": f"x {text}\n{text}"},
        ]
        described = tool("f")
        described["function"]["description"] = text
        body = {"model": "demo", "messages": messages, "tools": [described]}
        answer = http.post("/tokenize", json=body)
        assert answer.status_code == 200, answer.text
        found: list[int] = answer.json()["tokens"]
        return found

    # The demo model's control tokens are its first seven.
    plain = [token for token in tokens("plain") if token < 7]
    assert len(plain) >= 4
    assert [token for token in tokens(control) if token < 7] == plain
    # Written in look-alikes and in pieces, too.
    assert [token for token in tokens(control.replace("|", "｜")) if token < 7] == plain
    assert [token for token in tokens(control[:3] + control + control[3:]) if token < 7] == plain
