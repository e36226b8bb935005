"""Every view in Chromium, with made-up documents of 1, 3 and 14 nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from support.page import documents as page_documents
from support.page.browser import DESKTOP, PHONE, Watched, tab
from support.page.server import PlayedPage, served_pages

SIZES = (1, 3, 14)
VIEWS = ("chat", "cluster", "events", "models", "series")

HOSTILE_ANSWER = (
    "<img src=x onerror='window.pwned = 1'><script>window.pwned = 1</script>",
    "<svg onload='window.pwned = 1'></svg><iframe srcdoc='<script>parent.pwned = 1</script>'>",
    '</iframe>\n\n[a link](javascript:window.pwned=1) ![](x" onerror="window.pwned=1)',
    "\n\n<a href='javascript:window.pwned=1'>another</a> ![far](https://example.org/far.png)",
    "\n\n<form action='https://example.org/'><button>a button</button></form> The end.",
)


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    pages = {str(size): PlayedPage(num_nodes=size) for size in SIZES}
    pages["loading"] = PlayedPage(num_nodes=3, is_loading=True)
    pages["hostile"] = PlayedPage(num_nodes=3, is_hostile=True, answer=HOSTILE_ANSWER)
    with served_pages(pages) as origin:
        yield origin


def show(watched: Watched, name: str, view: str) -> None:
    """Open a view, and wait until it shows what there is."""
    page = watched.page
    page.goto(f"{watched.origin}/{name}/#/{view}")
    num_nodes = int(name) if name.isdigit() else 3
    num_models = len(page_documents.model_ids(num_nodes))
    if view == "chat":
        expect(page.get_by_label("Model", exact=True).locator("option")).to_have_count(num_models)
        expect(page.get_by_role("heading", name="Chat with")).to_be_visible()
    elif view == "cluster":
        expect(page.locator(".map .box")).to_have_count(num_nodes)
        expect(page.get_by_role("heading", name="The path of a token through")).to_be_visible()
    elif view == "events":
        newest = page_documents.event_documents(num_nodes)[-1]["message"]
        expect(page.locator("main").get_by_text(newest).first).to_be_visible()
    elif view == "models":
        expect(page.locator(".deployments > li")).to_have_count(num_models)
    else:
        expect(page.locator("canvas").first).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="node")).to_be_visible()


@pytest.mark.parametrize(
    ("size", "window"),
    [
        pytest.param(1, DESKTOP, id="1-desktop"),
        pytest.param(14, PHONE, id="14-phone"),
        pytest.param(1, PHONE, id="1-phone", marks=pytest.mark.exhaustive),
        pytest.param(3, DESKTOP, id="3-desktop", marks=pytest.mark.exhaustive),
        pytest.param(3, PHONE, id="3-phone", marks=pytest.mark.exhaustive),
        pytest.param(14, DESKTOP, id="14-desktop", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_accessible(
    browser: Browser, origin: str, view: str, size: int, window: tuple[int, int]
) -> None:
    """It has no errors, fits the window with all details open, and passes in both schemes."""
    with tab(browser, origin, size=window) as watched:
        show(watched, str(size), view)
        page = watched.page
        page.locator("details").evaluate_all("(all) => all.forEach((each) => each.open = true)")
        assert watched.scrolls_sideways() == []
        watched.check()
        assert watched.axe_violations() == []
        page.emulate_media(color_scheme="dark")
        assert watched.axe_violations() == []
        watched.check()


@pytest.mark.parametrize("view", VIEWS)
def test_the_keyboard_reaches_everything_in_order(browser: Browser, origin: str, view: str) -> None:
    """Forwards in a wide window, backwards in a narrow one; the bars never cover the focus."""
    with tab(browser, origin) as watched:
        show(watched, "3", view)
        page = watched.page
        for key, window in (("Tab", DESKTOP), ("Shift+Tab", PHONE)):
            page.set_viewport_size({"width": window[0], "height": window[1]})
            names = watched.list_focusable()
            assert names[0] == "Skip to the content"
            order = list(range(len(names)))
            if key == "Shift+Tab":
                order.reverse()
            watched.focus(order[0])
            for index in order[1:]:
                page.keyboard.press(key)
                reached, problem = watched.focused()
                assert reached == index, f"{key} leads to {names[reached]}, not {names[index]}"
                assert problem == "", names[index]
        watched.check()


def test_the_skip_link_leads_past_the_navigation(browser: Browser, origin: str) -> None:
    with tab(browser, origin) as watched:
        show(watched, "3", "events")
        page = watched.page
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Kind")).to_be_focused()
        watched.check()


def test_events_are_filtered(browser: Browser, origin: str) -> None:
    events = page_documents.event_documents(3)
    lost = [each for each in events if each["kind"] == "lost"]
    about = [each for each in events if each["model_id"] == "old-model"]
    gained = [each for each in events if "gain" in each["details"]]
    assert lost
    assert about
    assert gained
    with tab(browser, origin, size=PHONE) as watched:
        show(watched, "3", "events")
        page = watched.page
        shown = page.locator(".events > li")
        status = page.locator("main").get_by_role("status")
        clear = page.get_by_role("button", name="Clear")
        expect(shown).to_have_count(len(events))
        expect(clear).to_be_disabled()
        for label, value, expected in (
            ("Kind", "lost", lost),
            ("Model", "old-model", about),
            ("Node", "workstation", [each for each in events if is_about(each, 1)]),
        ):
            page.get_by_role("combobox", name=label).select_option(label=value)
            expect(status).to_have_text(f"{len(expected)} of {len(events)} events")
            expect(shown).to_have_count(len(expected))
            expect(shown.first).to_contain_text(expected[-1]["message"])
            clear.click()
            expect(shown).to_have_count(len(events))
        text = page.get_by_label("Text", exact=True)
        text.fill("DOES NOT fit")
        expect(shown).to_have_count(1)
        text.fill("Rebalanced gain")
        expect(shown).to_have_count(len(gained))
        page.get_by_label("Kind").select_option(label="lost")
        expect(status).to_have_text(f"0 of {len(events)} events")
        expect(shown).to_have_count(0)
        assert watched.scrolls_sideways() == []
        watched.check()


def is_about(event: dict[str, Any], index: int) -> bool:
    """Whether an event is about a node, or about stages that moved from it or to it."""
    moved = [node for each in event["details"].get("moved", ()) for node in each.values()]
    return page_documents.node_id(index) in (event["node_id"], *moved)


def test_models_that_are_being_loaded_are_accessible_on_a_phone(
    browser: Browser, origin: str
) -> None:
    with tab(browser, origin, size=PHONE) as watched:
        show(watched, "loading", "models")
        expect(watched.page.get_by_role("progressbar").first).to_be_visible()
        stages = watched.page.locator(".loading li").filter(has_text="cpu/native")
        expect(stages.first).to_contain_text("loading: ")
        assert watched.axe_violations() == []
        assert watched.scrolls_sideways() == []
        watched.check()


def ask(watched: Watched, question: str) -> None:
    """Write a message in the chat, and send it."""
    watched.page.get_by_label("Message", exact=True).fill(question)
    watched.page.get_by_role("button", name="Send").click()


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_names_run_no_script(browser: Browser, origin: str, view: str) -> None:
    with tab(browser, origin) as watched:
        show(watched, "hostile", view)
        page = watched.page
        assert page_documents.HOSTILE in (page.locator("#app").text_content() or "")
        assert page.title() != "1"
        assert page.locator("img[src=x]").count() == 0
        watched.check()


def test_a_hostile_answer_runs_no_script(browser: Browser, origin: str) -> None:
    """Neither as HTML nor as a link, and nothing of it is asked for from another host."""
    with tab(browser, origin) as watched:
        show(watched, "hostile", "chat")
        page = watched.page
        ask(watched, "<img src=x onerror='window.pwned = 1'>")
        answer = page.locator("article.answer")
        expect(answer).to_have_attribute("aria-busy", "false")
        expect(answer).to_contain_text("The end.")
        expect(page.locator("article.user .bubble")).to_contain_text("<img")
        targets = answer.locator("a").evaluate_all("(all) => all.map((each) => each.href)")
        assert not [each for each in targets if each.startswith("javascript:")]
        assert answer.locator("script, iframe, form, svg[onload], [onerror]").count() == 0
        page.reload()
        expect(page.locator("article.answer")).to_contain_text("The end.")
        assert page.evaluate("() => window.pwned ?? null") is None
        watched.check()


def test_the_policy_stops_a_script_that_gets_into_the_page(browser: Browser, origin: str) -> None:
    """What holds if the page itself had a hole; also shows that errors would be seen here."""
    with tab(browser, origin) as watched:
        show(watched, "1", "chat")
        watched.page.evaluate(
            """() => {
                const hole = document.createElement("div");
                hole.innerHTML = "<img src='data:,' onerror='window.pwned = 1'>";
                document.body.append(hole);
                const script = document.createElement("script");
                script.textContent = "window.pwned = 1";
                document.body.append(script);
                return new Promise((done) => setTimeout(done, 200));
            }"""
        )
        assert watched.page.evaluate("() => window.pwned ?? null") is None
        assert any("Content Security Policy" in error for error in watched.errors)
