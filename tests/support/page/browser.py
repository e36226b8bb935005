"""Debian's Chromium, driven by Playwright, and what a page may not do in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Request,
    expect,
    sync_playwright,
)

AXE = Path(__file__).parents[3] / "build" / "axe" / "axe.min.js"
"""https://github.com/dequelabs/axe-core, which the Makefile fetches."""

DESKTOP = (1280, 800)
PHONE = (360, 720)
WAIT_MS = 20_000
"""How long Playwright waits for what a test expects to see."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window. Skips the test where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers and root do not give it.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        expect.set_options(timeout=WAIT_MS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """An empty tab, the errors of its console, and its requests to others than ``origin``."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)

    def check(self) -> None:
        """Nothing went wrong so far."""
        assert self.errors == []
        assert self.foreign == []

    def scrolls_sideways(self) -> list[str]:
        """What is wider than the window: the document, or its scrolling parts."""
        found: list[str] = self.page.evaluate(
            """() => [document.scrollingElement, document.getElementById("main")]
                .filter((each) => each.scrollWidth > each.clientWidth)
                .map((each) => `${each.localName}: ${each.scrollWidth} > ${each.clientWidth}`)"""
        )
        return found

    def list_focusable(self) -> list[str]:
        """Return the names of what the Tab key shall reach, in the order of the document."""
        found: list[str] = self.page.evaluate(
            """() => {
                const all = "a[href], button, input, select, textarea, summary, [tabindex]";
                window.focusable = [...document.querySelectorAll(all)].filter((each) =>
                    each.tabIndex >= 0 && !each.matches(":disabled")
                    && each.checkVisibility({ visibilityProperty: true }));
                return window.focusable.map((each) => each.getAttribute("aria-label")
                    ?? each.labels?.[0]?.innerText ?? each.innerText);
            }"""
        )
        return found

    def focus(self, index: int) -> None:
        """Focus one of ``list_focusable``."""
        self.page.evaluate("(index) => window.focusable[index].focus()", index)

    def focused(self) -> tuple[int, str]:
        """Return which of ``list_focusable`` has the focus, and why that cannot be seen, or ""."""
        index, problem = self.page.evaluate(
            """() => {
                const element = document.activeElement;
                const [top, bottom] = [".header", ".navigation"].map((bar) =>
                    document.querySelector(bar).getBoundingClientRect());
                const lowest = bottom.top > innerHeight / 2
                    ? bottom.top : innerHeight;
                const box = element.getBoundingClientRect();
                const isInBar = element.closest(".header, .skip") !== null;
                const marked = element.closest(".composer") ?? element;
                const { outlineStyle, boxShadow } = getComputedStyle(marked);
                let problem = "";
                if (outlineStyle === "none" && boxShadow === "none") problem = "it has no outline";
                if (!isInBar && box.bottom <= top.bottom) problem = "the header covers it";
                if (!isInBar && box.top >= lowest) problem = "it is below the window";
                return [window.focusable.indexOf(element), problem];
            }"""
        )
        return index, problem

    def axe_violations(self) -> list[str]:
        """What axe-core finds, with the first of the elements. Skips the test without axe-core."""
        if not AXE.exists():
            pytest.skip("there is no axe-core: make fetches it with npm")
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        # The whole result of a large page takes Playwright seconds to read.
        num_passes, violations = self.page.evaluate(
            """async () => {
                const { passes, violations } = await axe.run({ resultTypes: ["violations"] });
                return [passes.length, violations.map(({ id, nodes: [node] }) =>
                    `${id}: ${node.html} ${node.failureSummary}`)];
            }"""
        )
        assert num_passes, "axe-core checked nothing"
        found: list[str] = violations
        return found

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _on_error(self, error: Error) -> None:
        self.errors.append(str(error))

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", "blob:")):
            self.foreign.append(request.url)


@contextmanager
def tab(
    browser: Browser,
    origin: str,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: Literal["light", "dark"] = "light",
) -> Iterator[Watched]:
    """Open an empty tab of a browser that knows nothing of the server yet."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    try:
        context.set_default_timeout(WAIT_MS)
        yield Watched(context.new_page(), origin)
    finally:
        context.close()
