"""``potluck.text.fill_in``."""

from __future__ import annotations

import pytest
from support.text_models import (
    LLAMA3_SPLIT,
    byte_level_document,
)

from potluck.text.fill_in import find_fill_in


def test_placeholder() -> None:
    pytest.skip(f"{LLAMA3_SPLIT}{byte_level_document}{find_fill_in}")
