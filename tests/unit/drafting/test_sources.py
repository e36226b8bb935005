"""The names of sources of drafts."""

from __future__ import annotations

import pytest

from potluck.drafting.ngram import NgramDrafts
from potluck.drafting.sources import draft_source, names_model


def test_ngram_drafts_and_off_does_not() -> None:
    assert isinstance(draft_source("ngram"), NgramDrafts)
    assert draft_source("off") is None


@pytest.mark.parametrize("name", ["org/name", "demo", "NGRAM", "small.gguf"])
def test_all_else_names_a_model(name: str) -> None:
    assert names_model(name)
    with pytest.raises(ValueError, match="must be opened first"):
        draft_source(name)
    assert not names_model("ngram")
    assert not names_model("off")
