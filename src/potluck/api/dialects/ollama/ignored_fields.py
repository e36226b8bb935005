"""Fields of Ollama's API that have no effect, as listed in ``docs/reference/http-api.md``."""

from __future__ import annotations

from potluck.api.ignored_fields import BOOLEAN, IgnoredField, InertFields

_NUMBER = IgnoredField(
    expected="a number",
    holds=lambda value: isinstance(value, int | float) and not isinstance(value, bool),
)
_DURATION = IgnoredField(
    expected="a number of seconds or a text such as 5m",
    holds=lambda value: isinstance(value, str) or _NUMBER.holds(value),
)

_KEEP_ALIVE = {"keep_alive": _DURATION}
"""How long the model stays loaded: in Potluck, until it is undeployed."""

_CUTTING = {"truncate": (None, False), "shift": (None, False), "_debug_render_only": (None, False)}
"""How to shorten a prompt that exceeds the context: Potluck rejects it."""

CHAT = InertFields(harmless=_KEEP_ALIVE, neutral=_CUTTING)
"""Fields of ``/api/chat``."""

GENERATE = InertFields(
    harmless=_KEEP_ALIVE,
    neutral={
        **_CUTTING,
        "context": (None, []),
        "images": (None, []),
        "template": (None, ""),
        # For images.
        "height": (None, 0),
        "steps": (None, 0),
        "width": (None, 0),
    },
)
"""Fields of ``/api/generate``."""

EMBED = InertFields(harmless=_KEEP_ALIVE)
"""Fields of ``/api/embed`` and ``/api/embeddings``."""

MESSAGE = InertFields(neutral={"images": (None, [])})
"""Fields of a message."""

OPTIONS = InertFields(
    harmless={
        # How to run the model, which is fixed at deployment.
        "f16_kv": BOOLEAN,
        "low_vram": BOOLEAN,
        "main_gpu": _NUMBER,
        "num_batch": _NUMBER,
        "num_gpu": _NUMBER,
        "num_keep": _NUMBER,
        "num_thread": _NUMBER,
        "numa": BOOLEAN,
        "use_mlock": BOOLEAN,
        "use_mmap": BOOLEAN,
        # Samplers that are disabled.
        "mirostat_eta": _NUMBER,
        "mirostat_tau": _NUMBER,
        "penalize_newline": BOOLEAN,
    },
    neutral={
        "embedding_only": (None, False),
        "logits_all": (None, False),
        "mirostat": (None, 0),
        "tfs_z": (None, 1, 1.0),
        "typical_p": (None, 1, 1.0),
        "vocab_only": (None, False),
    },
)
"""Fields of ``options``."""
