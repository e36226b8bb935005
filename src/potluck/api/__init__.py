"""The OpenAI-compatible HTTP API of an agent.

It uses a ``potluck.types.gateway.Gateway`` and depends on nothing behind it. ``serve`` runs the
server; ``docs/reference/http-api.md`` describes the requests that clients can send.
"""

from potluck.api.config import ApiConfig, ApiLimits
from potluck.api.keys import ApiKeys, create_api_key
from potluck.api.server import serve

__all__ = [
    "ApiConfig",
    "ApiKeys",
    "ApiLimits",
    "app",
    "config",
    "cors",
    "create_api_key",
    "keys",
    "serve",
    "server",
    "system_lines",
]
