"""Small models that draft for larger ones."""

from __future__ import annotations

from potluck.catalog.description import ModelDescription, load_token_list
from potluck.errors import ParameterError
from potluck.types.text import TokenList


def check_small(
    small: ModelDescription, verified: ModelDescription, *, draft_label: str, label: str
) -> None:
    """Raise ``ParameterError`` unless ``small`` has the vocabulary of ``verified``.

    ``draft_label`` and ``label`` are their names in messages. Raise the errors of
    ``load_token_list``.
    """
    require_same_vocabulary(
        load_token_list(small.files),
        load_token_list(verified.files),
        draft_label=draft_label,
        label=label,
    )


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
