"""The public side of a node's control port: a process that lets only members connect to Zenoh.

``process`` and ``splice`` run in that process, which needs only the standard library and so stays
small; ``supervisor`` is for the agent. Zenoh's own TLS listener pauses for 100 ms
after each failed handshake, which would make members wait behind unauthenticated clients.
"""
