"""What ``deploy`` and ``plan`` ask an agent for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from potluck.cli.options import Quant
from potluck.cli.placing import deploy_params
from potluck.cluster.calls import Deploy

NOTHING: dict[str, Any] = dict.fromkeys(
    ("context", "cache", "states", "arithmetic", "objective", "streams")
)


def asked(**options: Any) -> Deploy:
    params = deploy_params("m", **{**NOTHING, "quant": Quant.NONE, "mmap": False, **options})
    return msgspec.convert(params, Deploy)


def test_states_are_asked_for_or_are_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POTLUCK_STATES", raising=False)
    assert (asked().num_states, asked().default_states) == (None, None)
    monkeypatch.setenv("POTLUCK_STATES", "12")
    assert (asked().num_states, asked().default_states) == (None, 12)
    both = asked(states=7)
    assert (both.num_states, both.default_states) == (7, 12)
