"""Fields of Anthropic's API that are known and do nothing here; ``docs/http-api.md`` lists them."""

from __future__ import annotations

from potluck.api.other_fields import BOOLEAN, FLAT, LABEL, Others

_KEEP_THOUGHTS = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
"""What Claude Code asks for: to clear no thoughts, as here."""

_CACHE_CONTROL = {"cache_control": FLAT}
"""Which prefixes to cache: here every prefix is, without being asked for."""

BODY = Others(
    harmless={
        **_CACHE_CONTROL,
        "service_tier": LABEL,
        "inference_geo": LABEL,
    },
    neutral={
        "container": (None,),
        "context_management": (None, {"edits": []}, _KEEP_THOUGHTS),
        "mcp_servers": (None, []),
    },
)
"""Of a body."""

BLOCK = Others(
    harmless=_CACHE_CONTROL,
    neutral={"citations": (None, {"enabled": False}), "caller": (None, {"type": "direct"})},
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
