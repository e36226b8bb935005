"""The prompt for an API key, in Chromium, with the agent's own code behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect
from support.http.api_server import running_api
from support.page import documents as page_documents
from support.page.browser import tab
from support.page.played_console import PlayedConsole

from potluck.api.app import Page
from potluck.api.config import ApiConfig
from potluck.api.keys import ApiKeys, create_api_key
from potluck.dashboard.assets import assets
from potluck.types.console import Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """An address that needs a key, and the key."""

    url: str
    key: str


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    key = create_api_key(path, "friend")
    cluster = json.dumps(page_documents.cluster_document(3)).encode()
    console = PlayedConsole([Notice(kind="cluster", data=cluster)])
    page = Page(console=console, assets=assets())
    with running_api(ApiConfig(keys=ApiKeys.load(path)), page=page) as api:
        yield Keyed(url=api.url, key=key)


def test_a_wrong_key_is_refused_and_the_right_one_is_kept_for_the_tab(
    browser: Browser, keyed: Keyed
) -> None:
    with tab(browser, keyed.url) as watched:
        page = watched.page
        page.goto(f"{keyed.url}/#/cluster")
        prompt = page.get_by_role("dialog", name="API key")
        expect(prompt).to_be_visible()
        page.keyboard.press("Escape")
        expect(prompt).to_be_visible()
        expect(page.locator(".map .box")).to_have_count(0)

        prompt.get_by_label("Key or token").fill("pk-wrong")
        page.keyboard.press("Enter")
        expect(prompt.get_by_role("alert")).to_have_text("The server does not accept this key.")
        assert page.evaluate("() => sessionStorage.length + localStorage.length") == 0

        prompt.get_by_label("Key or token").fill(keyed.key)
        prompt.get_by_role("button", name="Use this key").click()
        expect(prompt).to_be_hidden()
        expect(page.locator(".map .box")).to_have_count(3)
        page.reload()
        expect(page.locator(".map .box")).to_have_count(3)
        expect(prompt).to_be_hidden()
        stored = page.evaluate("() => JSON.stringify([{...localStorage}, document.cookie])")
        assert keyed.key not in stored
        watched.check()

        other = page.context.new_page()
        other.goto(f"{keyed.url}/#/cluster")
        expect(other.get_by_role("dialog", name="API key")).to_be_visible()


def test_the_prompt_is_accessible(browser: Browser, keyed: Keyed) -> None:
    with tab(browser, keyed.url) as watched:
        watched.page.goto(f"{keyed.url}/#/cluster")
        expect(watched.page.get_by_role("dialog", name="API key")).to_be_visible()
        assert watched.axe_violations() == []


def test_a_token_in_the_address_is_used_and_removed_from_it(browser: Browser, keyed: Keyed) -> None:
    """As ``potluck dashboard`` prints it."""
    with tab(browser, keyed.url) as watched:
        watched.page.goto(f"{keyed.url}/#token={keyed.key}")
        expect(watched.page.get_by_label("Message", exact=True)).to_be_visible()
        expect(watched.page.get_by_role("dialog", name="API key")).to_be_hidden()
        expect(watched.page.get_by_role("status").filter(has_text="3 nodes")).to_be_visible()
        assert keyed.key not in watched.page.url
        watched.check()


def test_a_malformed_token_is_refused(browser: Browser, keyed: Keyed) -> None:
    with tab(browser, keyed.url) as watched:
        watched.page.goto(f"{keyed.url}/#token=%")
        expect(watched.page.get_by_role("dialog", name="API key")).to_be_visible()
