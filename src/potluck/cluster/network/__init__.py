"""Connections between nodes: identities, membership, and the edges that carry activations."""

__all__ = ["acceptor", "edges", "links", "membership", "trust"]
