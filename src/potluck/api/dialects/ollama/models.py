"""Models as Ollama lists them."""

from __future__ import annotations

from datetime import UTC, datetime

from potluck.api.dialects.ollama.rendering import timestamp
from potluck.api.rendering import Json
from potluck.types.gateway import ModelStatus, ServedModel

_NEVER = "9999-12-31T23:59:59Z"
"""Expiry time that Ollama reports for a model that stays loaded."""


def tag_json(status: ModelStatus) -> Json:
    """Return an entry of ``/api/tags``."""
    return {
        "name": status.model_id,
        "model": status.model_id,
        "modified_at": _created(status),
        "size": status.weights_bytes,
        "digest": status.digest,
        "details": _details(status),
    }


def running_json(status: ModelStatus) -> Json:
    """Return an entry of ``/api/ps``."""
    return {
        "name": status.model_id,
        "model": status.model_id,
        "size": status.weights_bytes,
        "digest": status.digest,
        "details": _details(status),
        "expires_at": _NEVER,
        "size_vram": 0,
        "context_length": status.context_tokens,
    }


def shown_json(status: ModelStatus, model: ServedModel) -> Json:
    """Return the response of ``/api/show``."""
    parameters = "\n".join(
        f"{name} {value}" for name, value in sorted(status.sampling_defaults.items())
    )
    return {
        "modelfile": "",
        "parameters": parameters,
        "template": model.template or "",
        "details": {**_details(status), "family": model.architecture},
        "model_info": {
            "general.architecture": model.architecture,
            f"{model.architecture}.context_length": status.context_tokens,
            f"{model.architecture}.vocab_size": model.vocab_size,
        },
        "capabilities": _capabilities(model),
        "modified_at": _created(status),
    }


def _capabilities(model: ServedModel) -> list[str]:
    capabilities = ["completion"] if model.has_logits else []
    if model.embedding is not None:
        capabilities.append("embedding")
    if model.fill_in is not None:
        capabilities.append("insert")
    if model.takes_tools:
        capabilities.append("tools")
    if model.can_think:
        capabilities.append("thinking")
    return capabilities


def _details(status: ModelStatus) -> Json:
    return {
        "parent_model": "",
        "format": status.weights_format,
        "family": "",
        "families": None,
        "parameter_size": "",
        "quantization_level": status.quantization,
    }


def _created(status: ModelStatus) -> str:
    return timestamp(datetime.fromtimestamp(status.created, UTC))
