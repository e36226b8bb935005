"""Run one model on several machines: membership, edges, workers, coordinators and agents."""

__all__ = ["agent", "invitations", "network"]
