"""Read model files: safetensors, GGUF, and packed weights."""

__all__ = [
    "encodings",
    "files",
    "gguf",
    "gguf_metadata",
    "json_reader",
    "packed",
    "safetensors",
    "source",
]
