"""Check whether two models have the same vocabulary, so that one can draft for the other."""

from __future__ import annotations

from potluck.errors import ParameterError
from potluck.types.text import TokenList


def require_same_vocabulary(
    draft: TokenList, verified: TokenList, *, draft_label: str, label: str
) -> None:
    """Raise ``ParameterError`` unless every token has the same meaning in both models.

    One may have more tokens than the other at the end, as padding or for control: those are never
    proposed, or end the drafts of a sequence.
    """
    num_common = min(len(draft.data), len(verified.data))
    differing = (
        token
        for token in range(num_common)
        if draft.data[token] != verified.data[token]
        or draft.control.get(token) != verified.control.get(token)
    )
    first = next(differing, None)
    if first is None and 2 * num_common > max(len(draft.data), len(verified.data)):
        return
    how = (
        f"token {first} differs"
        if first is not None
        else (f"it has {len(draft.data)} tokens, and {label} has {len(verified.data)}")
    )
    raise ParameterError(
        "draft",
        f"{draft_label} cannot draft for {label}: the vocabularies differ ({how})",
        hint="use a smaller model of the same family, or ngram, or off",
    )
