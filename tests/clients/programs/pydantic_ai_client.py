"""Pydantic AI's agents over its model class for OpenAI."""

from __future__ import annotations

import asyncio
from typing import Literal

from cases import MAX_TOKENS, MODEL, PROMPT, QUESTION, TOOL, report
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Paris", "Rome"]
    is_sunny: bool


def model(url: str) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def streamed(url: str) -> object:
    agent = Agent(model(url), model_settings=ModelSettings(temperature=0, max_tokens=MAX_TOKENS))

    async def run() -> str:
        async with agent.run_stream(PROMPT) as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    return {"whole": agent.run_sync(PROMPT).output, "streamed": asyncio.run(run())}


def tool(url: str) -> object:
    """The output is asked for as a tool call, and required; its result is then sent back."""
    agent = Agent(
        model(url),
        output_type=ToolOutput(Weather, name=TOOL),
        model_settings=ModelSettings(parallel_tool_calls=False, max_tokens=500),
    )
    result = agent.run_sync(QUESTION)
    (call,) = (
        part
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, ToolCallPart)
    )
    talker = Agent(model(url), model_settings=ModelSettings(max_tokens=MAX_TOKENS))
    answer = talker.run_sync(PROMPT, message_history=result.all_messages())
    return {"name": call.tool_name, "arguments": call.args_as_dict(), "answer": answer.output}


def schema(url: str) -> object:
    result = Agent(model(url), output_type=NativeOutput(Weather)).run_sync(QUESTION)
    return result.output.model_dump()


report({"streamed": streamed, "tool": tool, "schema": schema})
