"""Read a model's recommended sampling parameters, the defaults for requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.errors import ModelFileError, ParameterError
from potluck.formats.json_reader import read_document
from potluck.types.sampling import RECOMMENDED_FIELDS, validate_sampling
from potluck.types.step import SamplingParams

MAX_JSON_BYTES = 2**20
"""The maximum size of config.json and generation_config.json. They usually have a few kilobytes, or
tens of kilobytes if a quantization lists layers."""

LLAMA_CPP_DEFAULTS: Mapping[str, float | int] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
}
"""llama.cpp's defaults for a GGUF file without recommendations (``common_params_sampling`` in its
``common/common.h``). Its penalties are neutral."""

_GGUF_KEYS: Mapping[str, str] = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Keys below ``general.sampling.``. Samplers that Potluck does not have (Mirostat, XTC), the order
of samplers and the length of the penalty window are ignored."""


def read_generation_config(path: Path) -> dict[str, float | int]:
    """Return the recommendations in ``generation_config.json``; empty if it does not use sampling.

    Raise ``ModelFileError`` if values are invalid.
    """
    if not path.is_file():
        return {}
    values = read_document(path, MAX_JSON_BYTES)
    if values.get("do_sample") is not True:
        return {}
    named = {name: values.get(name) for name in RECOMMENDED_FIELDS}
    # In transformers, a top_k of 0 keeps all tokens.
    return _checked(
        {
            name: value
            for name, value in named.items()
            if value is not None and not (name == "top_k" and value == 0)
        },
        str(path),
        hint="correct or remove that line",
    )


def gguf_sampling_defaults(metadata: Mapping[str, object], *, path: str) -> dict[str, float | int]:
    """Return the recommendations in the keys ``general.sampling.*``, and llama.cpp's defaults for
    the rest.

    Raise ``ModelFileError`` if values are invalid.
    """
    defaults: dict[str, Any] = dict(LLAMA_CPP_DEFAULTS)
    for name, key in _GGUF_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, float):
            value = float(f"{value:.7g}")  # 0.8 is stored as the float32 next to it
        if value is not None:
            defaults[name] = value
    if isinstance(defaults["top_k"], int) and defaults["top_k"] <= 0:
        del defaults["top_k"]  # all tokens
    if isinstance(defaults["temperature"], float) and defaults["temperature"] < 0:
        defaults["temperature"] = 0.0  # greedy
    return _checked(defaults, path, hint="convert the model again, or use another file")


def _checked(defaults: dict[str, Any], path: str, *, hint: str) -> dict[str, float | int]:
    try:
        validate_sampling(SamplingParams(**defaults), vocab_size=1)
    except ParameterError as error:
        raise ModelFileError(
            path, f"invalid recommended sampling parameters: {error.message}", hint=hint
        ) from error
    return defaults
