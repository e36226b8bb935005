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
        "details": _details(status),
        "model_info": {
            "general.architecture": model.architecture,
            "general.basename": status.model_id.rpartition("/")[2],
            "general.parameter_count": status.num_parameters,
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
    if model.has_logits and model.template is not None:  # in any template, if need be as text
        capabilities.append("tools")
    if model.can_think:
        capabilities.append("thinking")
    return capabilities


def _details(status: ModelStatus) -> Json:
    return {
        "parent_model": "",
        "format": status.weights_format,
        "family": status.family,
        "families": [status.family] if status.family else None,
        "parameter_size": _rounded(status.num_parameters),
        "quantization_level": status.quantization.upper(),
    }


def _rounded(count: int) -> str:
    """Return a number of parameters as Ollama writes it (``134.52M``); empty if it is unknown."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.2f}".rstrip("0").rstrip(".") + letter
    return str(count) if count else ""


def _created(status: ModelStatus) -> str:
    return timestamp(datetime.fromtimestamp(status.created, UTC))
