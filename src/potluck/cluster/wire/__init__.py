"""The messages between nodes and to workers, and the table of methods that carry them."""

__all__ = ["calls", "methods", "sequence_messages", "steps", "worker_messages"]
