"""Make the pictures of the page for the README, in Chromium: docs/images/page-{chat,cluster}.png.

    PYTHONPATH=tests .venv/bin/python -m tools.page_images

The chat is a real one: three agents serve the built-in model, and one of them is killed while it
answers. The cluster is made up (``tests/support/page/documents.py``): agents on one machine would
show one machine.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Route, expect
from support.cluster.agents import Fleet
from support.page.browser import chromium, tab
from support.page.server import PlayedPage, served_pages

IMAGES = Path(__file__).parents[1] / "docs" / "images"
QUESTION = "Tell me a story about a little fox."
SIZE = (1280, 720)
WAIT_MS = 60_000

_MAX_BYTES = 150_000


def _chat(browser: Browser, path: Path) -> None:
    """Ask, kill an agent when the answer has begun, and take the picture of the whole answer."""

    def with_seed(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        route.continue_(post_data=json.dumps({**body, "seed": 7, "max_tokens": 400}))

    with (
        tempfile.TemporaryDirectory(prefix="potluck-images-") as directory,
        Fleet(Path(directory)) as fleet,
    ):
        first, _, last = fleet.start_all(range(3))
        first.deploy(context=1024, cache=1024, draft="off")
        with tab(browser, first.url, size=SIZE) as watched:
            page = watched.page
            page.route("**/v1/chat/completions", with_seed)
            page.goto(f"{first.url}/")
            expect(page.get_by_role("status").filter(has_text="3 nodes")).to_be_visible()
            page.get_by_label("Message", exact=True).fill(QUESTION)
            page.get_by_role("button", name="Send").click()
            answer = page.locator("article.answer")
            expect(answer.locator(".markdown")).not_to_be_empty()
            last.kill()
            notices = answer.locator(".answer-notices")
            expect(notices).to_contain_text("The answer continues.", timeout=WAIT_MS)
            expect(answer).to_have_attribute("aria-busy", "false", timeout=WAIT_MS)
            page.screenshot(path=path)


def _cluster(browser: Browser, path: Path) -> None:
    """Take the picture of a desktop with a GPU, a workstation and a laptop."""
    with (
        served_pages({"made-up": PlayedPage(num_nodes=3)}) as origin,
        tab(browser, origin, size=SIZE) as watched,
    ):
        watched.page.goto(f"{origin}/made-up/#/cluster")
        expect(watched.page.locator(".map .box")).to_have_count(3)
        expect(watched.page.get_by_role("status").filter(has_text="3 nodes")).to_be_visible()
        watched.page.screenshot(path=path)


def main() -> None:
    """Make both."""
    with chromium() as browser:
        for name, make in (("page-chat.png", _chat), ("page-cluster.png", _cluster)):
            path = IMAGES / name
            make(browser, path)
            size = path.stat().st_size
            print(f"{path}: {size} bytes")
            if size > _MAX_BYTES:
                raise SystemExit(f"{name} has more than {_MAX_BYTES} bytes")


if __name__ == "__main__":
    main()
