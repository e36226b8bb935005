"""The source of a deployment's drafts, by the value of ``--draft``."""

from __future__ import annotations

from potluck.types.choices import NGRAM, OFF
from potluck.types.drafting import DraftSource


def names_model(draft: str) -> bool:
    """Return whether ``draft`` names a smaller model."""
    return draft not in (NGRAM, OFF)


def draft_source(draft: str) -> DraftSource | None:
    """Return the source of drafts without a model; None if there is none.

    Raise ``ValueError`` if ``draft`` names a model.
    """
    if names_model(draft):
        raise ValueError(f"{draft} is a model, which must be opened first")
    if draft == OFF:
        return None
    from potluck.drafting.ngram import NgramDrafts  # loads NumPy, which checks do not need

    return NgramDrafts()
