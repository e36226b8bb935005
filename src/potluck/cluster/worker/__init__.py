"""The process of one stage: ``python -m potluck.cluster.worker`` (started by an agent only)."""

__all__ = ["watch"]
