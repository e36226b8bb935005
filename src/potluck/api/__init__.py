"""The OpenAI-compatible HTTP API of an agent.

It uses a ``potluck.types.gateway.Gateway`` and depends on nothing behind it. ``server`` runs the
API; ``docs/reference/http-api.md`` describes the requests that clients can send.
"""

__all__ = ["app", "config", "cors", "keys", "server", "system_lines"]
