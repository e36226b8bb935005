"""Drafters, which propose the next tokens of sequences, and the choice among them."""

__all__ = ["model", "sources"]
