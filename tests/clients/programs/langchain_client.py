"""LangChain's client of OpenAI."""

from __future__ import annotations

from typing import Any, Literal

from cases import MAX_TOKENS, MODEL, PROMPT, QUESTION, RESULT, report
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Paris", "Rome"]
    is_sunny: bool


@as_tool  # type: ignore[untyped-decorator]
def get_weather(city: Literal["Oslo", "Paris", "Rome"], is_sunny: bool) -> str:
    """Return the weather of a city."""
    return RESULT


def model(url: str, **others: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, max_retries=0, **others)


def streamed(url: str) -> object:
    chat = model(url, temperature=0, max_tokens=MAX_TOKENS)
    text = "".join(str(chunk.content) for chunk in chat.stream(PROMPT))
    return {"whole": chat.invoke(PROMPT).content, "streamed": text}


def tool(url: str) -> object:
    bound = model(url).bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    whole: Any = None
    for chunk in bound.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    free = model(url, max_tokens=MAX_TOKENS).bind_tools([get_weather], tool_choice="none")
    answer = free.invoke([HumanMessage(QUESTION), whole, result])
    return {"name": call["name"], "arguments": call["args"], "answer": answer.content}


def schema(url: str, method: Any = "json_schema") -> object:
    answer = model(url).with_structured_output(Weather, method=method).invoke(QUESTION)
    assert isinstance(answer, Weather)
    return answer.model_dump()


def responses_streamed(url: str) -> object:
    chat = model(url, temperature=0, max_tokens=MAX_TOKENS, use_responses_api=True)
    text = "".join(chunk.text for chunk in chat.stream(PROMPT))
    return {"whole": chat.invoke(PROMPT).text, "streamed": text}


report(
    {
        "streamed": streamed,
        "tool": tool,
        "schema": schema,
        "function_schema": lambda url: schema(url, "function_calling"),
        "responses_streamed": responses_streamed,
    }
)
