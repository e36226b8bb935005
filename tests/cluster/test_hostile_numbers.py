"""Numbers that no request may have, sent to a real agent: each is refused, and the model serves on.

What passes validation is serialized and bound in threads that every request shares, so one number
that does not fit would end the deployment for everybody.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster.agents import AgentProcess, Fleet
from support.processes.waiting import done_within

STEP_SECONDS = 20.0
"""Much shorter than by default, so that a step that is lost fails the test soon."""

INTEGERS = ("18446744073709551616", "9223372036854775808", "-1", "1" + 400 * "0")
FLOATS = ("1e400", "-1e400", "1" + 400 * "0", "-0.5e400", "NaN")

WHOLE = ("top_k", "max_tokens", "n", "seed", "best_of")
REAL = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
NO_ERROR = {("top_k", "-1"), ("seed", "-1"), ("seed", "9223372036854775808")}
"""-1 is how other servers write "all tokens", and OpenAI's seeds may be negative."""

CHAT = ("/v1/chat/completions", '"messages": [{"role": "user", "content": "hi"}]')
TEXT = ("/v1/completions", '"prompt": "hi"')


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with Fleet(tmp_path_factory.mktemp("numbers")) as fleet:
        environ = {"POTLUCK_STEP_SECONDS": str(STEP_SECONDS)}
        agent = fleet.start(0, memory_limit="400M", environ=environ).await_up()
        agent.deploy(context=256, cache=1024)
        yield agent
        with done_within(5, "Ctrl-C waits for nothing"):
            assert agent.end(signal.SIGINT) == 0


def post(agent: AgentProcess, path: str, body: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        agent.url + path, body.encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(("path", "prompt"), [CHAT, TEXT], ids=["chat", "completions"])
def test_every_number_that_does_not_fit_is_refused_and_the_model_serves_on(
    agent: AgentProcess, path: str, prompt: str
) -> None:
    deployed = agent.deployment("demo")
    cases = [(name, value) for name in WHOLE for value in INTEGERS]
    cases += [(name, value) for name in REAL for value in FLOATS]
    cases += [("logprobs", value) for value in INTEGERS]
    cases += [("top_logprobs", value) for value in INTEGERS]
    wrong = []
    for name, value in cases:
        limit = "" if name == "max_tokens" else ', "max_tokens": 1'
        body = f'{{"model": "demo", {prompt}, "{name}": {value}{limit}}}'
        status, answer = post(agent, path, body)
        if status != (200 if (name, value) in NO_ERROR else 400):
            wrong.append((name, value[:24], status, answer))
    for token, bias in (("1", "1e400"), ("1", "1" + 400 * "0"), ("18446744073709551616", "1")):
        body = f'{{"model": "demo", {prompt}, "logit_bias": {{"{token}": {bias}}}}}'
        status, answer = post(agent, path, body)
        if status != 400:
            wrong.append(("logit_bias", token, status, answer))
    assert not wrong
    with done_within(STEP_SECONDS / 5):
        status, answer = post(agent, path, f'{{"model": "demo", {prompt}, "max_tokens": 4}}')
    assert (status, answer["usage"]["completion_tokens"]) == (200, 4)
    after = agent.deployment("demo")
    assert deployed is not None
    assert after is not None
    assert (after["epoch"], after["state"]) == (deployed["epoch"], "ready")
