"""Let a machine without the cluster's secret become a member: one line, valid for a short time.

``invitation`` is the line, ``ledger`` the record that the inviting node keeps, and ``process`` the
HTTPS server behind it, in a process of its own that has neither the secret nor the authority's key.
``supervisor`` and ``issuing`` are for the inviting agent, ``joining`` for the new machine.
"""

__all__ = [
    "channel",
    "identity",
    "invitation",
    "issuing",
    "joined",
    "joining",
    "ledger",
    "software",
    "supervisor",
]
