"""What the documents say of the tree is true."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from potluck.api import ApiLimits
from potluck.cli.settings import Settings
from potluck.cluster.calls import DEFAULT_RECOVERY_WAIT_SECONDS
from potluck.cluster.edges.options import STALL_SECONDS
from potluck.cluster.steps import MAX_WAITING_SEQUENCES
from potluck.types.ranges import MAX_RECOVERY_WAIT_SECONDS

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


def test_the_command_reference_is_what_the_program_prints() -> None:
    spec = importlib.util.spec_from_file_location("cli_reference", ROOT / "tools/cli_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text() == module.reference()


def test_the_seconds_that_security_promises_are_those_of_the_code() -> None:
    text = " ".join((ROOT / "docs" / "security.md").read_text().split())
    assert f"is given up after {STALL_SECONDS} seconds" in text
    defaults = Settings()
    assert f"`step_seconds` ({defaults.step_seconds:g} s unless set)" in text
    assert f"`unit_step_seconds` ({defaults.unit_step_seconds:g} s)" in text


def test_the_waits_that_are_promised_are_those_of_the_code() -> None:
    cluster, api = (
        " ".join((ROOT / "docs" / name).read_text().split())
        for name in ("cluster.md", "http-api.md")
    )
    limits = ApiLimits()
    assert f"for at most {DEFAULT_RECOVERY_WAIT_SECONDS:g} seconds; `potluck deploy" in cluster
    assert f"by default for up to {DEFAULT_RECOVERY_WAIT_SECONDS:g} seconds" in api
    assert f"(0 to {MAX_RECOVERY_WAIT_SECONDS:.0f})" in cluster
    assert f"At most {MAX_WAITING_SEQUENCES} sequences of a deployment wait" in cluster
    assert f"comment every {limits.silence_seconds:g} seconds" in cluster
    assert f"nothing to send for {limits.silence_seconds:g} seconds sends a comment" in api
