"""The agent: a node's control process, for membership, workers, deployments and requests."""
