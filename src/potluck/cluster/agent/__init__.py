"""The agent: a node's control process, for membership, workers, deployments and requests."""

__all__ = [
    "asking",
    "config",
    "console",
    "control",
    "descriptors",
    "gateway",
    "hosts",
    "known_nodes",
    "own_address",
    "service",
    "state",
]
