"""Ollama's API: https://docs.ollama.com/api"""

from potluck.api.dialects.ollama.dialect import Ollama

__all__ = ["Ollama"]
