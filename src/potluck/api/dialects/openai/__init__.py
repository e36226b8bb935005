"""OpenAI's API: https://platform.openai.com/docs/api-reference"""

from potluck.api.dialects.openai.dialect import OpenAI

__all__ = ["OpenAI"]
