"""The control process of a node: membership, workers, deployments, requests."""
