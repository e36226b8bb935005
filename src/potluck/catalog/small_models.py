"""Small models that draft for larger ones."""

from __future__ import annotations

from potluck.catalog.description import ModelDescription, describe_model, load_token_list
from potluck.drafting.vocabularies import require_same_vocabulary


def describe_small(draft: str, verified: ModelDescription, *, label: str) -> ModelDescription:
    """Describe the model ``draft``, which drafts for ``verified``.

    ``label`` is the name of the latter in messages. Raise the errors of ``describe_model`` and
    ``check_small``.
    """
    description = describe_model(draft)
    check_small(description, verified, draft_label=draft, label=label)
    return description


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
