"""Real agents that verify drafts: the same answers as without them, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, no_end
from support.processes.waiting import eventually

LIMIT = "82M"
"""Of each agent: a process with its scratch, and a good half of ``demo``."""

NUM_TOKENS = 90
STORY = "Tell me of the harbour at night, the old house and the cat in the window."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "lives": {"type": "integer", "minimum": 1, "maximum": 9},
        "colours": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "lives", "colours"],
    "additionalProperties": False,
}
SAMPLED: Document = {"temperature": 1.0, "top_p": 0.95, "seed": 7, "logit_bias": no_end()}
STOP = ". Quickly she"
"""Of several tokens, late in the answer to ``sampled``: most of it is drafted and accepted."""
CASES: dict[str, Document] = {
    "greedy": {"temperature": 0, "logit_bias": no_end()},
    "sampled": SAMPLED,
    "stopped": {**SAMPLED, "stop": [STOP]},
    "penalties": {
        "temperature": 0.9,
        "seed": 2**40 + 1,
        "frequency_penalty": 0.6,
        "presence_penalty": 0.4,
        "logprobs": True,
        "top_logprobs": 3,
    },
    "document": {
        "temperature": 0.8,
        "seed": 3,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "cat", "strict": True, "schema": SCHEMA},
        },
    },
    "tool": {
        "temperature": 0.8,
        "seed": 4,
        "tool_choice": "required",
        "tools": [
            {
                "type": "function",
                "function": {"name": "adopt", "strict": True, "parameters": SCHEMA},
            }
        ],
    },
}


class Answer:
    """What a chat was answered with, but for what it cost."""

    def __init__(self, completion: Any) -> None:
        document = json.loads(completion.model_dump_json())
        (choice,) = document["choices"]
        message = choice["message"]
        for call in message.get("tool_calls") or ():
            del call["id"]
        self.content: str = message["content"] or ""
        self.compared = (message, choice["finish_reason"], choice.get("logprobs"))
        details = document["usage"]["completion_tokens_details"]
        self.num_accepted: int = details["accepted_prediction_tokens"] or 0
        self.num_rejected: int = details["rejected_prediction_tokens"] or 0


def answer(agent: AgentProcess, case: str, prediction: str | None = None) -> Answer:
    body: Document = {"max_tokens": NUM_TOKENS, **CASES[case]}
    if prediction is not None:
        body["prediction"] = {"type": "content", "content": prediction}
    with agent.client() as client:
        return Answer(
            client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": STORY}], **body
            )
        )


def guesses(expected: Answer) -> list[str | None]:
    """Predictions that are right, right at first, wrong soon and again and again, and none."""
    text = expected.content
    if not text:  # a call of a tool
        text = expected.compared[0]["tool_calls"][0]["function"]["arguments"]
    words = text.split(" ")
    words[::4] = ["no"] * len(words[::4])
    return [text, text[: len(text) // 2] + " and so on and so on", " ".join(words), "", None]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("drafts")) as fleet:
        fleet.start_all(range(3), memory_limit=LIMIT)
        yield fleet


@pytest.fixture(scope="module")
def expected(fleet: Fleet) -> dict[str, Answer]:
    """The answers without drafts; afterwards the model is deployed with them."""
    first, *_, last = fleet.live()
    deployed = first.deploy(context=512, cache=2048, draft="off")
    assert len(deployed["stages"]) == len(fleet.agents)
    answers = {case: answer(last, case) for case in CASES}
    assert all(each.num_accepted == each.num_rejected == 0 for each in answers.values())
    first.ask("undeploy", name="demo")
    assert len(first.deploy(context=512, cache=2048)["stages"]) == len(fleet.agents)
    return answers


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_without_drafts(
    fleet: Fleet, expected: dict[str, Answer], case: str
) -> None:
    agent = fleet.live()[-1]
    for number, prediction in enumerate(guesses(expected[case])):
        found = answer(agent, case, prediction)
        assert found.compared == expected[case].compared, prediction
        if number == 0 and case in ("greedy", "sampled"):
            assert found.num_accepted > NUM_TOKENS / 2


def test_drafts_beyond_a_stop_text_are_left_out(fleet: Fleet, expected: dict[str, Answer]) -> None:
    """The stop text is in the middle of the prediction, and of what a step verifies."""
    whole, stopped = expected["sampled"].content, expected["stopped"]
    assert stopped.content == whole.partition(STOP)[0] != whole
    assert stopped.compared[1] == "stop"
    found = answer(fleet.live()[-1], "stopped", whole)
    assert found.compared == stopped.compared
    assert found.num_accepted > NUM_TOKENS / 4


def test_many_at_once_are_answered_as_each_alone(fleet: Fleet, expected: dict[str, Answer]) -> None:
    agents = fleet.live()
    requests = [(case, each) for case in CASES for each in guesses(expected[case])]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda number: answer(agents[number % len(agents)], *requests[number]),
                range(len(requests)),
            )
        )
    for (case, prediction), each in zip(requests, found, strict=True):
        assert each.compared == expected[case].compared, (case, prediction)


def test_steps_of_wrong_drafts_are_cancelled(fleet: Fleet, expected: dict[str, Answer]) -> None:
    agent = fleet.live()[0]
    for case in ("greedy", "sampled"):
        for prediction in guesses(expected[case]):
            answer(agent, case, prediction)
    figures = {
        name: agent.metric(f"potluck_draft_{name}_total", model="demo")
        for name in ("tokens", "accepted_tokens", "cancelled_steps")
    }
    assert figures["tokens"] > figures["accepted_tokens"] > NUM_TOKENS
    assert figures["cancelled_steps"] > 0


def test_a_stage_that_is_killed_while_it_verifies_changes_nothing(
    fleet: Fleet, expected: dict[str, Answer]
) -> None:
    """Its epoch ends with steps of drafts in flight; the text goes on, drafted again."""
    first, *_, last = fleet.live()
    text = expected["sampled"].content
    received: list[str] = []
    errors: list[Exception] = []

    def read() -> None:
        try:
            with first.client() as client:
                stream = client.chat.completions.create(
                    model="demo",
                    messages=[{"role": "user", "content": STORY}],
                    max_tokens=NUM_TOKENS,
                    prediction={"type": "content", "content": text},
                    stream=True,
                    **CASES["sampled"],
                )
                for event in stream:
                    received.extend(each.delta.content or "" for each in event.choices)
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    for victim in (last, first):
        received.clear()
        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: len("".join(received)) > 20, within=30, what="the answer begins")
        for worker in victim.workers():
            os.kill(worker, signal.SIGKILL)
        reader.join(60)
        assert not reader.is_alive()
        assert not errors
        assert "".join(received) == text
        assert await_ready(first, "demo")["epoch"]["number"] > 1
