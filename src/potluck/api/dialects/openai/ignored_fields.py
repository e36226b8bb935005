"""Fields of OpenAI's API that have no effect, as listed in ``docs/reference/http-api.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from potluck.api.ignored_fields import (
    ANYTHING,
    BOOLEAN,
    FLAT,
    LABEL,
    LABELS,
    IgnoredField,
    InertFields,
)

SERVICE: Mapping[str, IgnoredField] = {
    "safety_identifier": LABEL,
    # Price and latency tiers: Potluck serves every request the same way.
    "service_tier": LABEL,
}
"""Fields of every request: labels of the client."""

PROMPT_CACHE: Mapping[str, IgnoredField] = {
    "prompt_cache_key": LABEL,
    "prompt_cache_options": FLAT,
    "prompt_cache_retention": LABEL,
}
"""Hints for a prompt cache, which never change an answer."""

_HARMLESS_COMMON: Mapping[str, IgnoredField] = {
    **SERVICE,
    **PROMPT_CACHE,
    # Labels for servers that store requests, which Potluck does not.
    "metadata": LABELS,
    "store": BOOLEAN,
    "user": replace(LABEL, is_kept=True),  # written to the agent's log
    # llama.cpp's: whether to use the prompt cache, which never changes an answer here.
    "cache_prompt": BOOLEAN,
}

_NEUTRAL_COMMON: Mapping[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    # Samplers of llama.cpp and Ollama, with the values at which they do nothing.
    "typical_p": (None, 1, 1.0),
    "tfs_z": (None, 1, 1.0),
    "mirostat": (None, 0),
    "dry_multiplier": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
    "xtc_probability": (None, 0, 0.0),
    "top_a": (None, 0, 0.0),
    "top_n_sigma": (None, -1, -1.0),
    # How many tokens back the penalties apply; here, to the whole text.
    "repeat_last_n": (None, -1),
    # Fields of vLLM and SGLang, at their defaults.
    "ignore_eos": (None, False),
    "include_stop_str_in_output": (None, False),
    "length_penalty": (None, 1, 1.0),
    "min_tokens": (None, 0),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "stop_token_ids": (None, []),
    "use_beam_search": (None, False),
}

CHAT = InertFields(
    harmless={
        **_HARMLESS_COMMON,
        # The preferred length of an answer. No supported model was trained with such a parameter.
        "verbosity": LABEL,
    },
    neutral={
        **_NEUTRAL_COMMON,
        # Fields of completions.
        "echo": (None, False),
        "suffix": (None,),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "audio": (None,),
        "modalities": (None, ["text"]),
        "moderation": (None,),
        "web_search_options": (None,),
    },
)
"""Fields of OpenAI's chat API."""

COMPLETION = InertFields(
    harmless=_HARMLESS_COMMON,
    neutral=_NEUTRAL_COMMON,
)
"""Fields of its completions API."""

MESSAGE = InertFields(
    harmless={
        # Which prefix of a chat to cache, as in Anthropic's API and some proxies.
        "cache_control": FLAT,
        # Values that OpenAI's clients derived from the content, which the message also contains.
        "parsed": ANYTHING,
        # Fields of other servers' answers. Reasoning is read from reasoning_content.
        "id": LABEL,
        "reasoning_details": ANYTHING,
        "timestamp": ANYTHING,
        # DeepSeek's: the last message is continued, which is done in any case.
        "prefix": BOOLEAN,
    },
    neutral={
        "annotations": (None, []),
        "audio": (None,),
        "function_call": (None,),
        "refusal": (None,),
    },
)
"""Fields of messages: clients send an assistant's answer back as they received it."""

CALLED_FUNCTION = InertFields(harmless={"parsed_arguments": ANYTHING})
"""Fields of the function of a tool call that OpenAI's clients derived from its arguments."""

PART = InertFields(harmless={"cache_control": FLAT, "prompt_cache_breakpoint": FLAT})
"""Fields of a part of a message's content."""

REASONING = InertFields(neutral={"exclude": (None, False)})
"""Fields of ``reasoning``: reasoning cannot be left out of an answer."""

STREAM_OPTIONS = InertFields(
    # Random padding in every chunk, which hides the length of the chunk's text from eavesdroppers.
    harmless={"include_obfuscation": BOOLEAN}
)
