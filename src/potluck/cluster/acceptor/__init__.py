"""The public side of a node's control port: a process that lets only members through to Zenoh.

``process`` and ``splice`` run in that process, which needs the standard library alone and so stays
small; ``supervisor`` and ``takeover`` are for the agent. Zenoh's own TLS listener pauses for a
tenth of a second after each handshake that fails, which leaves members waiting behind strangers.
"""
