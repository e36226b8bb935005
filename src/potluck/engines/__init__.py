"""Run programs on processors: backends, loading, and measuring."""

__all__ = ["arithmetic_choice", "backends", "loading", "native"]
