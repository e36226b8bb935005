"""Instructor, over OpenAI's client and over Anthropic's."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import instructor
import openai
from cases import MODEL, QUESTION, report
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Paris", "Rome"]
    is_sunny: bool


def make_client(url: str, mode: instructor.Mode) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode)


MESSAGES: Any = [{"role": "user", "content": QUESTION}]


def streamed(url: str) -> object:
    partials = list(
        make_client(url, instructor.Mode.JSON_SCHEMA).create_partial(
            model=MODEL, response_model=Weather, messages=MESSAGES, max_retries=0
        )
    )
    return partials[-1].model_dump()


def of_mode(url: str, mode: instructor.Mode) -> object:
    answer = make_client(url, mode).create(
        model=MODEL, response_model=Weather, messages=MESSAGES, max_retries=0
    )
    found: object = answer.model_dump()
    return found


def anthropic_schema(url: str) -> object:
    client = instructor.from_anthropic(
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    )
    answer = client.create(
        model=MODEL, response_model=Weather, messages=MESSAGES, max_tokens=500, max_retries=0
    )
    found: object = answer.model_dump()
    return found


report(
    {
        "streamed_schema": streamed,
        "function_schema": lambda url: of_mode(url, instructor.Mode.TOOLS),
        "schema": lambda url: of_mode(url, instructor.Mode.JSON_SCHEMA),
        "anthropic_schema": anthropic_schema,
    }
)
