"""Fields of OpenAI's API that are known and do nothing here; ``docs/http-api.md`` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from potluck.api.other_fields import (
    ANYTHING,
    BOOLEAN,
    FLAT,
    LABEL,
    LABELS,
    OBJECT,
    Harmless,
    Others,
)

SERVICE: Mapping[str, Harmless] = {
    "safety_identifier": LABEL,
    # Who pays how much for how soon: every request here has the same service.
    "service_tier": LABEL,
}
"""Of every request: who asks, and what for."""

PROMPT_CACHE: Mapping[str, Harmless] = {
    "prompt_cache_key": LABEL,
    "prompt_cache_options": FLAT,
    "prompt_cache_retention": LABEL,
}
"""Hints for a cache of prompts, which never changes an answer."""

_HARMLESS_COMMON: Mapping[str, Harmless] = {
    **SERVICE,
    **PROMPT_CACHE,
    # Labels for servers that store requests, which Potluck does not.
    "metadata": LABELS,
    "store": BOOLEAN,
    "user": replace(LABEL, is_kept=True),  # the agent's log has it
}

CHAT = Others(
    harmless={
        **_HARMLESS_COMMON,
        # A guess at the answer, by which a server may be faster; the answer is the same.
        "prediction": OBJECT,
        # How long an answer the client likes. No model here was trained to be told so.
        "verbosity": LABEL,
    },
    neutral={
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "audio": (None,),
        "modalities": (None, ["text"]),
        "moderation": (None,),
        "web_search_options": (None,),
    },
)
"""Of OpenAI's chat API."""

COMPLETION = Others(
    harmless=_HARMLESS_COMMON,
    neutral={"best_of": (None, 1)},
)
"""Of its completions."""

MESSAGE = Others(
    harmless={
        # Which prefix of a chat to cache, as Anthropic's API and some proxies have it.
        "cache_control": FLAT,
        # What OpenAI's own clients made of the content, which the message has, too.
        "parsed": ANYTHING,
    },
    neutral={
        "annotations": (None, []),
        "audio": (None,),
        "function_call": (None,),
        "refusal": (None,),
    },
)
"""Of messages: an assistant's answer may be sent back as it was received."""

CALLED_FUNCTION = Others(harmless={"parsed_arguments": ANYTHING})
"""Of the function of a tool call: what OpenAI's own clients made of its arguments."""

PART = Others(harmless={"cache_control": FLAT, "prompt_cache_breakpoint": FLAT})
"""Of a part of a message's content."""

STREAM_OPTIONS = Others(
    # Random text in every chunk, which hides from eavesdroppers how long the chunk's own text is.
    harmless={"include_obfuscation": BOOLEAN}
)
