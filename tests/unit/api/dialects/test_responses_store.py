"""The store of responses: what stays, and for how long."""

from __future__ import annotations

import json

import pytest

from potluck.api.dialects.openai.responses.bodies import parse_items
from potluck.api.dialects.openai.responses.requests import item_messages
from potluck.api.dialects.openai.responses.store import ResponseStore, StoredResponse
from potluck.types.text import ChatMessage, ToolCall


def stored(text: str = "a", *, previous: StoredResponse | None = None) -> StoredResponse:
    message = ChatMessage(role="user", content=text)
    return StoredResponse(response=b"{}", messages=(message,), previous=previous)


def kept(store: ResponseStore, *names: str) -> list[str]:
    return [name for name in names if store.get(name) is not None]


def test_a_chain_is_one_chat() -> None:
    last = stored("c", previous=stored("b", previous=stored("a")))
    assert [message.content for message in last.chat()] == ["a", "b", "c"]


def test_a_long_chain_is_read_without_recursion() -> None:
    last = stored("first")
    for _ in range(5000):
        last = stored(previous=last)
    assert len(last.chat()) == 5001


def test_responses_used_longest_ago_go_first() -> None:
    store = ResponseStore(max_responses=2)
    store.put("a", stored())
    store.put("b", stored())
    assert store.get("a") is not None
    store.put("c", stored())
    assert len(store) == 2
    assert kept(store, "a", "b", "c") == ["a", "c"]


def test_bytes_are_bounded_with_all_that_a_response_keeps_alive() -> None:
    first = stored("x" * 10_000)
    assert first.num_bytes > 10_000
    second = stored(previous=first)
    assert second.num_bytes > first.num_bytes
    store = ResponseStore(max_bytes=2 * first.num_bytes)
    store.put("a", first)
    store.put("b", second)
    assert kept(store, "a", "b") == ["b"]


@pytest.mark.parametrize("part", ["response", "content", "reasoning", "arguments"])
def test_everything_that_is_long_counts(part: str) -> None:
    long = "x" * 100_000
    call = ToolCall(call_id="c", name="n", arguments=long if part == "arguments" else "{}")
    message = ChatMessage(
        role="assistant",
        content=long if part == "content" else "",
        reasoning=long if part == "reasoning" else None,
        tool_calls=(call,),
    )
    response = long.encode() if part == "response" else b"{}"
    assert 100_000 < StoredResponse(response=response, messages=(message,)).num_bytes < 110_000


def test_a_response_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(max_bytes=5000)
    store.put("a", stored())
    store.put("b", stored("x" * 6000))
    assert len(store) == 0
    store.put("c", stored())
    assert kept(store, "c") == ["c"]


def test_what_is_removed_leaves_room_and_chains_whole() -> None:
    store = ResponseStore(max_bytes=3 * stored().num_bytes)
    first = stored("f")
    store.put("a", first)
    store.put("b", stored(previous=first))
    assert store.remove("a")
    assert not store.remove("a")
    assert store.get("a") is None
    last = store.get("b")
    assert last is not None
    assert [message.content for message in last.chat()] == ["f", "a"]
    store.put("c", stored())
    assert kept(store, "b", "c") == ["b", "c"]


def test_the_items_of_a_response_are_one_message() -> None:
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"a":1}'},
    ]
    assert item_messages(parse_items(items)) == [
        ChatMessage(
            role="assistant",
            content="I look.",
            reasoning="Hm",
            tool_calls=(ToolCall(call_id="c1", name="find", arguments='{"a":1}'),),
        )
    ]


def test_an_item_is_found_as_long_as_its_response_is_kept() -> None:
    def response(*names: str) -> StoredResponse:
        items = [{"id": name, "type": "message"} for name in names]
        return StoredResponse(
            response=json.dumps({"output": items}).encode(), messages=(), item_ids=names
        )

    store = ResponseStore(max_responses=2)
    store.put("a", response("1", "2"))
    store.put("b", response("3"))
    assert store.item("2") == {"id": "2", "type": "message"}
    assert store.item("x") is None
    store.put("c", response("4"))
    assert store.item("3") is None, "it was used longest ago"
    assert store.remove("a")
    assert [store.item(name) is not None for name in "1234"] == [False, False, False, True]
