"""Simon Willison's llm: its models for OpenAI's API, as extra-openai-models.yaml makes them."""

from __future__ import annotations

import json
from typing import Any

import llm
from cases import (
    MAX_SEED,
    MAX_TOKENS,
    MODEL,
    PROMPT,
    QUESTION,
    RESULT,
    SCHEMA,
    TOOL,
    report,
)
from llm.default_plugins.openai_models import Chat


def model(url: str) -> Any:
    chat = Chat(
        model_id="potluck",
        model_name=MODEL,
        api_base=f"{url}/v1",
        supports_schema=True,
        supports_tools=True,
    )
    chat.key = "none"
    return chat


def streamed(url: str) -> object:
    options: Any = {"temperature": 0, "max_tokens": MAX_TOKENS}
    whole = model(url).prompt(PROMPT, stream=False, **options)
    return {"whole": whole.text(), "streamed": "".join(model(url).prompt(PROMPT, **options))}


def tool(url: str) -> object:
    called: list[dict[str, Any]] = []

    def run(**arguments: Any) -> str:
        called.append(arguments)
        return RESULT

    weather = llm.Tool(
        name=TOOL,
        description="Return the weather of a city.",
        input_schema=SCHEMA,
        implementation=run,
    )
    for seed in range(MAX_SEED):  # it has no tool_choice: a call, or an answer of this schema
        conversation = model(url).conversation(tools=[weather])
        response = conversation.prompt(
            QUESTION, schema=SCHEMA, temperature=1, seed=seed, max_tokens=120
        )
        calls = response.tool_calls()
        if calls:
            break
    answer = conversation.prompt(tool_results=response.execute_tool_calls(), max_tokens=MAX_TOKENS)
    return {"name": calls[0].name, "arguments": called[0], "answer": answer.text()}


def schema(url: str) -> object:
    found: object = json.loads(model(url).prompt(QUESTION, schema=SCHEMA).text())
    return found


report({"streamed": streamed, "tool": tool, "schema": schema})
