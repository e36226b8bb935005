"""Anthropic's Messages API: https://docs.claude.com/en/api/messages"""

from potluck.api.dialects.anthropic.dialect import Anthropic

__all__ = ["Anthropic"]
