"""What the documents say of the tree is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from potluck.api.config import ApiLimits
from potluck.cli.settings import Settings
from potluck.cluster.network.edges.options import STALL_SECONDS
from potluck.scheduling.frame_limits import MAX_WAITING_SEQUENCES
from potluck.types.ranges import DEFAULT_RECOVERY_WAIT_SECONDS, MAX_RECOVERY_WAIT_SECONDS
from tools.reference.pages import DIRECTORY, PAGES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    if path.name != "CHANGELOG.md"
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / unquote(target)).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_in_code_style_exists(path: Path) -> None:
    pattern = (
        r"`((?:src|cpp|tests|tools|docs|benchmarks|local|models|types|engines|text)/[\w./-]+)`"
    )
    for named in re.findall(pattern, path.read_text()):
        places = (ROOT / named, ROOT / "src" / "potluck" / named)
        assert any(place.exists() or place.with_suffix(".py").exists() for place in places), named


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_current(name: str) -> None:
    current = PAGES[name]()
    assert (DIRECTORY / name).read_text() == current, "run python -m tools.reference"


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    architecture = (tmp_path / "ARCHITECTURE.html").read_text()
    assert 'href="adr/0006-edges-are-one-way.html"' in architecture


def test_the_seconds_that_security_promises_are_those_of_the_code() -> None:
    text = " ".join((ROOT / "docs" / "design" / "security.md").read_text().split())
    assert f"is given up after {STALL_SECONDS} seconds" in text
    defaults = Settings()
    assert f"`step_seconds` ({defaults.step_seconds:g} s unless set)" in text
    assert f"`unit_step_seconds` ({defaults.unit_step_seconds:g} s)" in text


def test_the_waits_that_are_promised_are_those_of_the_code() -> None:
    cluster, api = (
        " ".join((ROOT / "docs" / name).read_text().split())
        for name in ("guides/cluster.md", "reference/http-api.md")
    )
    limits = ApiLimits()
    assert f"for at most {DEFAULT_RECOVERY_WAIT_SECONDS:g} seconds; `potluck deploy" in cluster
    assert f"by default for up to {DEFAULT_RECOVERY_WAIT_SECONDS:g} seconds" in api
    assert f"(0 to {MAX_RECOVERY_WAIT_SECONDS:.0f})" in cluster
    assert f"At most {MAX_WAITING_SEQUENCES} sequences of a deployment wait" in cluster
    assert f"comment every {limits.silence_seconds:g} seconds" in cluster
    assert f"nothing to send for {limits.silence_seconds:g} seconds sends a comment" in api
