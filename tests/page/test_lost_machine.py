"""Three agents, their page in Chromium, and a machine that is killed while an answer streams.

The answer is computed twice, and is longer than any recovery: half a minute beside other tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect
from support.cluster.agents import AgentProcess, Fleet, no_end
from support.page.browser import tab

QUESTION = "Tell me a story about a little fox."
SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 1200}
"""Tokens enough that the answer is not at its end when the machine is lost."""

RECOVERY_MS = 60_000
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[AgentProcess]]:
    with Fleet(tmp_path) as fleet:
        agents = fleet.start_all(range(3))
        agents[0].deploy(context=2048, cache=2048, draft="off")
        yield agents


def undisturbed_text(agent: AgentProcess) -> str:
    """What the model answers while all machines live."""
    with agent.client() as client:
        completion = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            logit_bias=no_end(),
            **SAMPLING,
        )
    text: str | None = completion.choices[0].message.content
    assert text is not None
    return text


def without_an_end(route: Route) -> None:
    """Send on a request of the page, for an answer that goes on up to the limit of tokens."""
    body = json.loads(route.request.post_data or "")
    route.continue_(post_data=json.dumps({**body, **SAMPLING, "logit_bias": no_end()}))


def test_the_page_tells_of_a_lost_machine_and_the_answer_goes_on_to_its_end(
    browser: Browser, agents: list[AgentProcess]
) -> None:
    """Over 10 s on slow machines: agents are started, and the same answer is written twice."""
    first, _, third = agents
    expected = undisturbed_text(first)
    with tab(browser, first.url) as watched:
        page = watched.page
        page.route("**/v1/chat/completions", without_an_end)
        page.goto(f"{first.url}/")
        expect(page.get_by_role("status").filter(has_text="3 nodes")).to_be_visible()
        page.get_by_label("Message", exact=True).fill(QUESTION)
        page.get_by_role("button", name="Send").click()
        answer = page.locator("article.answer")
        expect(answer.locator(".markdown")).not_to_be_empty()
        third.kill()
        notices = answer.locator(".answer-notices")
        expect(notices).to_contain_text("The answer continues.", timeout=RECOVERY_MS)
        expect(page.get_by_role("status").filter(has_text="2 nodes")).to_be_visible()
        expect(answer).to_have_attribute("aria-busy", "false", timeout=RECOVERY_MS)
        expect(answer).to_contain_text("stopped at the token limit")
        expect(answer.get_by_role("alert")).to_have_count(0)
        kept = page.evaluate("() => Object.values({...localStorage}).join()")
        assert json.dumps(expected, ensure_ascii=False) in kept
        page.goto(f"{first.url}/#/events")
        expect(page.locator("main")).to_contain_text("lost")
        watched.check()
        page.goto(f"{first.url}/#/chat")
        expect(notices).to_be_visible()
        assert watched.axe_violations() == []
