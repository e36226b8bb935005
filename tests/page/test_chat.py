"""The chat in Chromium: what is shown of an answer, and what is sent when it is used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from support.page.browser import PHONE, Watched, tab
from support.page.server import PlayedPage, served_pages

CALL = {"index": 0, "id": "call-1", "type": "function"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    pages = {
        "plain": PlayedPage(num_nodes=1),
        "tools": PlayedPage(
            num_nodes=1,
            answer=(
                {"reasoning_content": "I should **look**"},
                {"reasoning_content": " it up."},
                {"tool_calls": [{**CALL, "function": {"name": "weather", "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":"Oslo"}'}}]},
            ),
        ),
        "endless": PlayedPage(num_nodes=1, answer=("Once upon",), is_endless=True),
    }
    with served_pages(pages) as origin:
        yield origin


class Chat:
    """The chat of one of the pages, and the bodies of its requests."""

    def __init__(self, watched: Watched, name: str) -> None:
        self.watched = watched
        self.page = watched.page
        self.requests: list[dict[str, Any]] = []
        self.page.on(
            "request",
            lambda request: (
                self.requests.append(json.loads(request.post_data or ""))
                if request.url.endswith("/v1/chat/completions")
                else None
            ),
        )
        self.page.goto(f"{watched.origin}/{name}/#/chat")
        expect(self.page.get_by_label("Model", exact=True).locator("option")).to_have_count(1)
        self.message = self.page.get_by_label("Message", exact=True)
        self.answers = self.page.locator("article.answer")

    def ask(self, text: str) -> None:
        self.message.fill(text)
        self.message.press("Enter")

    def await_answer(self) -> None:
        expect(self.answers.last).to_have_attribute("aria-busy", "false")

    def export(self, kind: str) -> str:
        self.page.get_by_role("button", name="Export or delete").click()
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=kind).click()
        return Path(download.value.path()).read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["desktop", "phone"])
def test_reasoning_is_folded_and_tools_are_called(
    browser: Browser, origin: str, size: tuple[int, int]
) -> None:
    with tab(browser, origin, size=size) as watched:
        chat = Chat(watched, "tools")
        page = chat.page
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Tools").fill(json.dumps(TOOLS))
        page.get_by_label("System prompt").fill("Be brief.")
        page.get_by_role("button", name="Done").click()
        chat.message.fill("The weather in Oslo?")
        page.get_by_role("button", name="Send").click()
        chat.await_answer()
        assert chat.requests[0]["tools"] == TOOLS
        assert [each["role"] for each in chat.requests[0]["messages"]] == ["system", "user"]

        reasoning = chat.answers.last.locator(".reasoning-text")
        expect(reasoning).to_be_hidden()
        chat.answers.last.get_by_text("Reasoning").click()
        expect(reasoning).to_have_text("I should look it up.")
        expect(chat.answers.last.locator(".tool-call")).to_contain_text('"city": "Oslo"')
        assert watched.axe_violations() == []
        assert watched.scrolls_sideways() == []

        chat.answers.last.get_by_label("Result of weather").fill("4 degrees")
        chat.answers.last.get_by_role("button", name="Send the result").click()
        expect(chat.answers).to_have_count(2)
        chat.await_answer()
        called, result = chat.requests[1]["messages"][-2:]
        assert called["reasoning_content"] == "I should **look** it up."
        assert called["tool_calls"][0]["function"]["arguments"] == '{"city":"Oslo"}'
        assert result == {"role": "tool", "tool_call_id": "call-1", "content": "4 degrees"}

        text = chat.export("Export as Markdown")
        assert "> I should **look** it up." in text
        assert '```\nweather({"city":"Oslo"})\n```' in text
        assert "```\n4 degrees\n```" in text
        watched.check()


def test_a_message_is_edited_and_a_conversation_exported(browser: Browser, origin: str) -> None:
    with tab(browser, origin) as watched:
        chat = Chat(watched, "plain")
        for text in ("First", "Second"):
            chat.ask(text)
            expect(chat.answers).to_have_count(1 if text == "First" else 2)
            chat.await_answer()
        expect(chat.answers.last.locator(".stats")).to_contain_text("first token")
        chat.page.get_by_role("button", name="Edit this message").first.click()
        chat.page.get_by_label("Edited message").fill("Better")
        chat.page.get_by_label("Edited message").press("Control+Enter")
        expect(chat.answers).to_have_count(1)
        chat.await_answer()
        assert [each["content"] for each in chat.requests[-1]["messages"]] == ["Better"]
        exported = json.loads(chat.export("Export as JSON"))
        (conversation,) = exported["conversations"]
        assert exported["schema"] == "potluck.conversations/1"
        assert [each["content"] for each in conversation["messages"]] == ["Better", "An answer."]
        watched.check()


def test_settings_that_cannot_be_sent_do_not_keep_a_chat_busy(
    browser: Browser, origin: str
) -> None:
    with tab(browser, origin) as watched:
        chat = Chat(watched, "plain")
        chat.ask("First")
        for tools, shown in (("[", "Settings: tools is not JSON"), ("", "An answer.")):
            chat.await_answer()
            chat.page.get_by_role("button", name="Settings").click()
            chat.page.get_by_label("Tools").fill(tools)
            chat.page.get_by_role("button", name="Done").click()
            chat.page.get_by_role("button", name="Answer again").click()
            expect(chat.answers.last).to_contain_text(shown)
        assert len(chat.requests) == 2
        watched.check()


def test_keys_write_lines_stop_answers_and_reach_everything(browser: Browser, origin: str) -> None:
    with tab(browser, origin) as watched:
        chat = Chat(watched, "endless")
        expect(chat.message).to_be_focused()
        chat.message.press_sequentially("One line")
        chat.message.press("Shift+Enter")
        chat.message.press_sequentially("and another")
        chat.message.press("Enter")
        expect(chat.answers.locator(".markdown")).to_have_text("Once upon")
        assert chat.requests[0]["messages"][-1]["content"] == "One line\nand another"
        chat.message.press("Escape")
        chat.await_answer()
        expect(chat.answers.locator(".stats")).to_contain_text("stopped")
        names = set()
        for _ in range(40):
            chat.page.keyboard.press("Tab")
            names.add(chat.page.evaluate("() => document.activeElement.getAttribute('aria-label')"))
        wanted = {"Model", "Message", "Export or delete", "Answer again", "Edit this message"}
        assert wanted <= names
        watched.check()
