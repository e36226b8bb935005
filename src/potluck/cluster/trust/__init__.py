"""Who belongs to a cluster: the secret, the authority derived from it, and node certificates.

``secret`` and ``authority`` are for the agent; ``credentials`` and ``pem_files`` need the standard
library alone, so that a worker, which is handed its node's credentials, stays small.
"""
