"""``/v1/models``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from potluck.api.rendering import Json
from potluck.types.gateway import ModelStatus
from potluck.types.sampling import default_sampling


def model_json(status: ModelStatus) -> Json:
    """Return an entry of ``/v1/models``.

    It includes the fields that Anthropic's clients read, which use the same endpoint, and some
    more.
    """
    return {
        "id": status.model_id,
        "object": "model",
        "created": status.created,
        "owned_by": "potluck",
        "type": "model",
        "display_name": status.model_id,
        "created_at": datetime.fromtimestamp(status.created, UTC).isoformat(),
        "context_tokens": status.context_tokens,
        "state": status.state.value,
        "reason": status.reason or None,
        "default_sampling": default_sampling(status.sampling_defaults),
    }


def models_json(models: Sequence[ModelStatus]) -> Json:
    """Return the response of ``/v1/models``, which Anthropic's clients read as a single page."""
    ids = [status.model_id for status in models]
    return {
        "object": "list",
        "data": [model_json(status) for status in models],
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
