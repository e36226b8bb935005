"""What reading weights holds in addition to them."""

UNDOING_BYTES = 2**20
"""What undoing an interleaving may hold (or one pair of rows, where that is more)."""
