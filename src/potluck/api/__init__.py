"""The OpenAI-compatible HTTP address of an agent.

It knows a ``potluck.types.gateway.Gateway`` and nothing of what is behind it. ``serve`` runs it;
``docs/http-api.md`` says what clients can ask for.
"""

from potluck.api.config import ApiConfig, ApiLimits
from potluck.api.keys import ApiKeys, create_api_key
from potluck.api.server import serve

__all__ = ["ApiConfig", "ApiKeys", "ApiLimits", "create_api_key", "serve"]
