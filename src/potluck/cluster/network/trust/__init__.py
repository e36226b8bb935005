"""Cluster membership: the secret, the certificate authority derived from it, and node certificates.

``secret`` and ``authority`` are for the agent. ``credentials`` and ``pem_files`` need only the
standard library, so that a worker, which is given its node's credentials, stays small.
"""
