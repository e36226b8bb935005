"""The Models view in Chromium: what its form sends, the plan that it shows, and how deployments
are removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Request, expect
from support.page import documents as page_documents
from support.page.browser import PHONE, Watched, tab
from support.page.server import PlayedPage, served_pages

from potluck.types.deployment import Deploy

DEFAULTS = {
    "model": "demo",
    "quantization": "none",
    "objective": "latency",
    "arithmetic": "exact",
    "is_mapped": False,
    "rebalance": "auto",
    "prefix_cache": True,
    "keep_weights": True,
}


REFUSAL = (
    "the model needs 38.2 GiB, but only 31 GiB are usable on 3 units (add 1 more node with as much "
    "memory as the largest)"
)


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    pages = {
        "3": PlayedPage(num_nodes=3),
        "loading": PlayedPage(num_nodes=3, is_loading=True),
        "refused": PlayedPage(num_nodes=3, refusal=REFUSAL),
        "user": PlayedPage(num_nodes=3, can_administer=False),
    }
    with served_pages(pages) as origin:
        yield origin


def requests_of(watched: Watched, method: str) -> list[tuple[str, str | None]]:
    """Return a list that gets the path, below the cluster's own, and body of each request."""
    requests: list[tuple[str, str | None]] = []

    def note(request: Request) -> None:
        if request.method == method:
            requests.append((request.url.split("/", 4)[4], request.post_data))

    watched.page.on("request", note)
    return requests


def test_all_settings_are_sent_and_the_plan_is_shown_before_anything_is_loaded(
    browser: Browser, origin: str
) -> None:
    requests: list[tuple[str, dict[str, Any]]] = []

    def note(request: Request) -> None:
        if request.method == "POST":
            requests.append((request.url.rpartition("/")[2], json.loads(request.post_data or "")))

    with tab(browser, origin, size=PHONE) as watched:
        page = watched.page
        page.on("request", note)
        page.goto(f"{origin}/3/#/models")
        page.get_by_label("Model", exact=True).fill("demo")
        page.get_by_role("button", name="Show the plan").click()
        expect(page.get_by_role("heading", name="The model fits")).to_be_focused()
        assert requests == [("plan", DEFAULTS)]
        assert watched.axe_violations() == []
        assert watched.scrolls_sideways() == []

        page.get_by_text("More settings").click()
        page.get_by_label("Units that share a stage").fill("0")
        page.get_by_text("More settings").click()
        page.get_by_role("button", name="Show the plan").click()
        expect(page.get_by_label("Units that share a stage")).to_be_focused()
        assert len(requests) == 1, "the field that is wrong is shown instead"
        for label, value in (
            ("Units that share a stage", "2"),
            ("Layout", "desktop=24,laptop=24"),
            ("Spares of each stage", "1"),
            ("Minimum gain to rebalance", "50"),
            ("Drafts", "small-4b"),
            ("State slots", "4"),
            ("Cache on disk", "1.5"),
            ("Target time per token", "90.5"),
            ("Wait for lost stages", "5"),
        ):
            page.get_by_label(label).fill(value)
        page.get_by_role("combobox", name="Rebalance").select_option("never")
        page.get_by_label("Reuse equal prefixes").uncheck()
        page.get_by_role("button", name="Show the plan").click()
        page.get_by_role("button", name="Deploy this plan").click()
        expect(page.get_by_text("demo is being deployed.")).to_be_visible()
        assert [path for path, _ in requests] == ["plan", "plan", "deployments"]
        assert requests[1][1] == requests[2][1]
        assert requests[2][1] == {
            **DEFAULTS,
            "tensor_parallel": 2,
            "layout": "desktop=24,laptop=24",
            "num_spares": 1,
            "rebalance": "never",
            "rebalance_threshold": 0.5,
            "draft": "small-4b",
            "num_states": 4,
            "cache_disk_bytes": 3 * 2**29,
            "target_step_ms": 90.5,
            "recovery_wait_seconds": 5,
            "prefix_cache": False,
        }
        assert requests[2][1].keys() <= set(Deploy.__struct_fields__)
        watched.check()


def test_a_refused_plan_says_why_and_nothing_can_be_deployed(browser: Browser, origin: str) -> None:
    with tab(browser, origin) as watched:
        page = watched.page
        page.goto(f"{origin}/refused/#/models")
        page.get_by_label("Model", exact=True).fill("org/Too-Large")
        page.get_by_role("button", name="Show the plan").click()
        failure = page.get_by_role("alert")
        expect(failure).to_contain_text("Planning failed.")
        expect(failure).to_contain_text(REFUSAL)
        expect(page.get_by_role("button", name="Deploy this plan")).to_have_count(0)
        expect(page.get_by_role("button", name="Show the plan")).to_be_enabled()
        expect(page.get_by_label("Model", exact=True)).to_have_value("org/Too-Large")
        assert watched.axe_violations() == []
        page.get_by_label("Model", exact=True).fill("org/Small")
        expect(failure).to_have_count(0)
        assert watched.foreign == []
        assert all("422" in error for error in watched.errors), "Chromium logs the refused request"


@pytest.mark.parametrize(
    ("name", "action", "stays"),
    [("3", "Undeploy", "Keep it"), ("loading", "Cancel loading", "Keep loading")],
)
def test_a_deployment_is_removed_only_after_a_confirmation(
    browser: Browser, origin: str, name: str, action: str, stays: str
) -> None:
    model_id = page_documents.model_ids(3)[-1]
    with tab(browser, origin) as watched:
        page = watched.page
        requests = requests_of(watched, "DELETE")
        page.goto(f"{origin}/{name}/#/models")
        opener = page.get_by_role("button", name=f"{action} {model_id}")
        dialog = page.get_by_role("dialog", name=action)
        for close_by in ("Escape", stays):
            opener.click()
            expect(dialog).to_contain_text(model_id)
            if close_by == stays:
                dialog.get_by_role("button", name=stays).click()
            else:
                page.keyboard.press(close_by)
            expect(dialog).to_have_count(0)
            expect(opener).to_be_focused()
        assert requests == []
        opener.click()
        assert watched.axe_violations() == []
        dialog.get_by_role("button", name=action).click()
        expect(dialog).to_have_count(0)
        assert requests == [(f"cluster/deployments/{model_id}", None)]
        watched.check()


def test_a_removal_that_is_refused_says_why_in_its_dialog(browser: Browser, origin: str) -> None:
    with tab(browser, origin, size=PHONE) as watched:
        page = watched.page
        page.goto(f"{origin}/refused/#/models")
        page.get_by_role("button", name="Undeploy").first.click()
        dialog = page.get_by_role("dialog", name="Undeploy")
        dialog.get_by_role("button", name="Undeploy").click()
        expect(dialog.get_by_role("alert")).to_contain_text(REFUSAL)
        expect(dialog.get_by_role("button", name="Undeploy")).to_be_enabled()
        assert watched.axe_violations() == []
        assert watched.scrolls_sideways() == []


def test_without_the_right_to_administer_actions_are_disabled_and_explained(
    browser: Browser, origin: str
) -> None:
    with tab(browser, origin) as watched:
        page = watched.page
        page.goto(f"{origin}/user/#/models")
        expect(page.get_by_text("but not deploy or remove them")).to_be_visible()
        removals = page.get_by_role("button", name="Undeploy")
        expect(removals).to_have_count(len(page_documents.model_ids(3)))
        for action in (*removals.all(), page.get_by_role("button", name="Show the plan")):
            expect(action).to_be_disabled()
        expect(page.get_by_label("Model", exact=True)).to_be_disabled()
        for explained in (removals.first, page.get_by_role("group", name="What to deploy")):
            expect(explained).to_have_accessible_description(re.compile("potluck dashboard"))
        assert watched.axe_violations() == []
        page.get_by_role("button", name="API key").click()
        expect(page.get_by_role("dialog")).to_contain_text("requires a key with the right")
        watched.check()
