"""Fields of Anthropic's API that are known and do nothing here; ``docs/http-api.md`` lists them."""

from __future__ import annotations

from potluck.api.other_fields import BOOLEAN, FLAT, LABEL, Others

_CACHE_CONTROL = {"cache_control": FLAT}
"""Which prefixes to cache: here every prefix is, without being asked for."""

BODY = Others(
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
        # Claude Code asks for all thoughts to be kept, which they are.
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
"""Of a body."""

BLOCK = Others(
    harmless=_CACHE_CONTROL,
    neutral={
        "caller": (None, {"type": "direct"}),
        "citations": (None, [], {"enabled": False}),
        "toolset_name": (None,),
    },
)
"""Of a block of a message's content, and of the system's."""

TOOL = Others(
    harmless={
        **_CACHE_CONTROL,
        # The pieces in which arguments are streamed: here they always come as they are written.
        "eager_input_streaming": BOOLEAN,
    },
    neutral={
        "type": (None, "custom"),
        "defer_loading": (None, False),
        "allowed_callers": (None, ["direct"]),
        "input_examples": (None, []),
    },
)
"""Of a tool."""
