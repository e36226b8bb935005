"""Fields of Ollama's API that are known and do nothing here; ``docs/http-api.md`` lists them."""

from __future__ import annotations

from potluck.api.other_fields import BOOLEAN, Harmless, Others

_NUMBER = Harmless(
    expected="a number",
    holds=lambda value: isinstance(value, int | float) and not isinstance(value, bool),
)
_DURATION = Harmless(
    expected="a number of seconds or a text such as 5m",
    holds=lambda value: isinstance(value, str) or _NUMBER.holds(value),
)

_KEEP_ALIVE = {"keep_alive": _DURATION}
"""For how long the model stays loaded: here it stays until it is undeployed."""

_CUTTING = {"truncate": (None, False), "shift": (None, False), "_debug_render_only": (None, False)}
"""What becomes of what does not fit into the context: here it is refused."""

CHAT = Others(harmless=_KEEP_ALIVE, neutral=_CUTTING)
"""Of ``/api/chat``."""

GENERATE = Others(
    harmless=_KEEP_ALIVE,
    neutral={
        **_CUTTING,
        "context": (None, []),
        "images": (None, []),
        "template": (None, ""),
        # Of pictures.
        "height": (None, 0),
        "steps": (None, 0),
        "width": (None, 0),
    },
)
"""Of ``/api/generate``."""

EMBED = Others(harmless=_KEEP_ALIVE)
"""Of ``/api/embed`` and ``/api/embeddings``."""

MESSAGE = Others(neutral={"images": (None, [])})
"""Of a message."""

OPTIONS = Others(
    harmless={
        # How the model is to be run, which the deployment has decided.
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
        # Of samplers that are off.
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
"""Of ``options``."""
