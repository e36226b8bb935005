"""``/v1/models``."""

from __future__ import annotations

from potluck.api.rendering import Json
from potluck.types.gateway import ModelStatus
from potluck.types.sampling import default_sampling


def model_json(status: ModelStatus) -> Json:
    """An entry of ``/v1/models``; what OpenAI does not have comes last."""
    return {
        "id": status.model_id,
        "object": "model",
        "created": status.created,
        "owned_by": "potluck",
        "context_tokens": status.context_tokens,
        "state": status.state.value,
        "reason": status.reason or None,
        "default_sampling": default_sampling(status.sampling_defaults),
    }
