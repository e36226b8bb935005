"""Fields of Anthropic's API that have no effect, as listed in ``docs/reference/http-api.md``."""

from __future__ import annotations

from potluck.api.ignored_fields import BOOLEAN, FLAT, LABEL, InertFields

_CACHE_CONTROL = {"cache_control": FLAT}
"""Which prefixes to cache: Potluck always caches all of them."""

BODY = InertFields(
    harmless={
        **_CACHE_CONTROL,
        "billing_policy": LABEL,
        "diagnostics": FLAT,
        "inference_geo": LABEL,
        "service_tier": LABEL,
        "speed": LABEL,
        "user_profile_id": LABEL,
        "workspace_id": LABEL,
    },
    neutral={
        "compaction": (None,),
        "container": (None,),
        # Claude Code asks to keep all reasoning, which Potluck always does.
        "context_management": (
            None,
            {"edits": []},
            {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ),
        "fallback_credit_token": (None,),
        "fallbacks": (None, []),
        "mcp_servers": (None, []),
        "thread": (None,),
    },
)
"""Fields of a body."""

BLOCK = InertFields(
    harmless=_CACHE_CONTROL,
    neutral={
        "caller": (None, {"type": "direct"}),
        "citations": (None, [], {"enabled": False}),
        "toolset_name": (None,),
    },
)
"""Fields of a content block of a message, and of the system prompt."""

TOOL = InertFields(
    harmless={
        **_CACHE_CONTROL,
        # Fine-grained streaming of arguments: Potluck always streams them as they are generated.
        "eager_input_streaming": BOOLEAN,
    },
    neutral={
        "type": (None, "custom"),
        "defer_loading": (None, False),
        "allowed_callers": (None, ["direct"]),
        "input_examples": (None, []),
    },
)
"""Fields of a tool."""
