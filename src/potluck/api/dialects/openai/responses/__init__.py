"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses"""

from potluck.api.dialects.openai.responses.endpoints import ResponsesEndpoints

__all__ = ["ResponsesEndpoints"]
