"""Valid bodies of every address that takes one, drawn at random, with the fields that it has."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]
MakeDocument = Callable[[random.Random, str], Document]

SCHEMA: Document = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
        "unit": {"anyOf": [{"const": "C"}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Oslo"}'


def _pick(rng: random.Random, required: Document, optional: Document) -> Document:
    """The required fields, and up to five of the others."""
    chosen = rng.sample(sorted(optional), rng.randint(0, min(5, len(optional))))
    return {**required, **{name: optional[name] for name in chosen}}


def _function(**others: Any) -> Document:
    return {"name": "weather", "description": "x", "parameters": SCHEMA, **others}


def _sampling() -> Document:
    return {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "logit_bias": {"5": 1},
        "seed": 1,
        "stop": ["a"],
        "n": 2,
        "user": "me",
        "stream": True,
    }


def _forms() -> Document:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "structured_outputs": {"regex": "[a-c]{1,5}"},
        "guided_choice": ["yes", "no"],
        "guided_grammar": 'root ::= "a" [b-c]+',
        "guided_json": SCHEMA,
        "guided_regex": "(ab)*",
    }


def _chat(rng: random.Random, model: str) -> Document:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    turns: list[Document] = [
        {"role": "user", "content": rng.choice(["hello", [{"type": "text", "text": "hi"}]])}
    ]
    if rng.random() < 0.5:
        turns = [
            {"role": "system", "content": "x"},
            *turns,
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
            {"role": "tool", "tool_call_id": "1", "content": "sunny <end>"},
        ]
    required = {"model": model, "messages": turns, "max_tokens": rng.randint(1, 3)}
    choice = {"type": "function", "function": {"name": "weather"}}
    tools = [{"type": "function", "function": _function(strict=True)}]
    return _pick(
        rng,
        required,
        {
            **_sampling(),
            **_forms(),
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 2,
            "tools": tools,
            "tool_choice": rng.choice(["none", "auto", "required", choice]),
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": False},
            "continue_final_message": False,
            "metadata": {"a": "b"},
        },
    )


def _completion(rng: random.Random, model: str) -> Document:
    required = {
        "model": model,
        "prompt": rng.choice(["go", ["a", "b"], [1, 2, 3], [[1], [2]]]),
        "max_tokens": rng.randint(1, 3),
    }
    optional = {**_sampling(), **_forms(), "logprobs": 1, "echo": True, "suffix": ""}
    return _pick(rng, required, optional)


def _response(rng: random.Random, model: str) -> Document:
    items: list[Document] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    ]
    of_other_tools: list[Document] = [
        {"type": "custom_tool_call", "call_id": "2", "name": "sql", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "y"},
        {"type": "local_shell_call", "call_id": "3", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "3", "output": "y"},
        {"type": "shell_call", "call_id": "4", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "4", "output": [{"stdout": "y"}]},
        {"type": "apply_patch_call", "call_id": "5", "operation": {"type": "delete_file"}},
        {"type": "apply_patch_call_output", "call_id": "5", "status": "completed"},
        {"type": "mcp_call", "id": "6", "name": "x", "arguments": "{}", "output": "y"},
        {"type": "item_reference", "id": "msg_x"},
        {"type": "compaction", "encrypted_content": "x"},
    ]
    tools: list[Document] = [
        {"type": "function", **_function()},
        {"type": "custom", "name": "sql", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "web_search_2025_08_26", "filters": {}},
    ]
    required = {
        "model": model,
        "input": rng.choice(["hello", items[:1], items, [*items[:1], *of_other_tools]]),
        "max_output_tokens": rng.randint(1, 3),
    }
    return _pick(
        rng,
        required,
        {
            "instructions": "be brief",
            "temperature": 0.5,
            "top_p": 0.9,
            "top_logprobs": 1,
            "tools": rng.choice([tools[:1], tools]),
            "tool_choice": rng.choice(
                [
                    "auto",
                    "required",
                    {"type": "function", "name": "x"},
                    {"type": "allowed_tools", "mode": "auto", "tools": tools[:3]},
                ]
            ),
            "parallel_tool_calls": True,
            "previous_response_id": "resp_x",
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            "include": ["reasoning.encrypted_content"],
            "metadata": {"a": "b"},
            "store": False,
            "stream": True,
            "stream_options": {"include_obfuscation": False},
            "truncation": "disabled",
        },
    )


def _messages(rng: random.Random, model: str) -> Document:
    return {**_prompt(rng, model), "max_tokens": rng.randint(1, 3)} | _pick(
        rng,
        {},
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "stop_sequences": ["a"],
            "stream": True,
            "metadata": {"user_id": "x"},
        },
    )


def _prompt(rng: random.Random, model: str) -> Document:
    cached = {"cache_control": {"type": "ephemeral"}}
    turns: list[Document] = [
        {"role": "user", "content": [{"type": "text", "text": "hi", **cached}]}
    ]
    if rng.random() < 0.5:
        result = {"type": "tool_result", "tool_use_id": "1", "content": "sunny", "is_error": False}
        called = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Oslo"}}
        thought = {"type": "thinking", "thinking": "hm", "signature": ""}
        turns += [
            {"role": "assistant", "content": [thought, called]},
            {"role": "user", "content": [result]},
        ]
    return _pick(
        rng,
        {"model": model, "messages": turns},
        {
            "system": rng.choice(["x", [{"type": "text", "text": "x", **cached}]]),
            "tools": [{"name": "weather", "description": "x", "input_schema": SCHEMA}],
            "tool_choice": {"type": rng.choice(["auto", "any", "none"])},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    )


def _ollama_chat(rng: random.Random, model: str) -> Document:
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    turns: list[Document] = [{"role": "user", "content": "hi"}]
    if rng.random() < 0.5:
        turns += [
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": "sunny"},
        ]
    tools = [{"type": "function", "function": _function()}]
    return _pick(
        rng,
        {"model": model, "messages": turns, "options": _options(rng)},
        {**_ollama(rng), "tools": tools},
    )


def _options(rng: random.Random) -> Document:
    return {
        "num_predict": rng.randint(1, 3),
        "seed": 1,
        "temperature": 0.5,
        "stop": ["a"],
        "num_ctx": 4096,
    }


def _ollama(rng: random.Random) -> Document:
    return {
        "stream": False,
        "format": rng.choice(["json", SCHEMA]),
        "think": rng.choice([True, "low"]),
        "keep_alive": rng.choice(["5m", 0, -1]),
        "logprobs": True,
        "top_logprobs": 1,
    }


def _ollama_generate(rng: random.Random, model: str) -> Document:
    required = {"model": f"{model}:latest", "prompt": "go", "options": _options(rng)}
    return _pick(rng, required, {**_ollama(rng), "system": "x", "raw": True, "suffix": ""})


def _ollama_embed(rng: random.Random, model: str) -> Document:
    required = {"model": model, "input": rng.choice(["a", ["a", "b"]])}
    return _pick(rng, required, {"truncate": True, "dimensions": 2, "keep_alive": "5m"})


def _embedding(rng: random.Random, model: str) -> Document:
    required = {"model": model, "input": rng.choice(["a", ["a", "b"], [1, 2], [[1], [2, 3]]])}
    optional = {"encoding_format": "base64", "dimensions": 2, "user": "me"}
    return _pick(rng, required, optional)


def _rerank(rng: random.Random, model: str) -> Document:
    required = {"model": model, "query": "q", "documents": ["a", {"text": "b"}]}
    optional = {"top_n": 1, "return_documents": True, "instruction": "x", "user": "me"}
    return _pick(rng, required, optional)


def _score(rng: random.Random, model: str) -> Document:
    required = {"model": model, "text_1": "a", "text_2": rng.choice(["b", ["b", "c"]])}
    return _pick(rng, required, {"instruction": "x", "user": "me"})


def _tokenize(rng: random.Random, model: str) -> Document:
    required: Document = rng.choice(
        [
            {"prompt": "hé"},
            {"content": "hé", "with_pieces": True},
            {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True},
        ]
    )
    optional = {"model": model, "return_token_strs": True, "add_special_tokens": True}
    return _pick(rng, required, optional)


DOCUMENTS: Mapping[str, Mapping[str, MakeDocument]] = {
    "chat": {"/v1/chat/completions": _chat},
    "completions": {"/v1/completions": _completion},
    "responses": {"/v1/responses": _response},
    "vectors": {
        "/v1/embeddings": _embedding,
        "/v1/rerank": _rerank,
        "/rerank": _rerank,
        "/v1/score": _score,
    },
    "tokens": {
        "/tokenize": _tokenize,
        "/detokenize": lambda rng, model: {"model": model, "tokens": [1, 2, 3]},
    },
    "anthropic": {"/v1/messages": _messages, "/v1/messages/count_tokens": _prompt},
    "ollama": {
        "/api/chat": _ollama_chat,
        "/api/generate": _ollama_generate,
        "/api/embed": _ollama_embed,
        "/api/embeddings": lambda rng, model: {"model": model, "prompt": "a"},
        "/api/show": lambda rng, model: {"model": model, "verbose": True},
    },
}
"""The addresses of each dialect, of OpenAI's in groups."""
