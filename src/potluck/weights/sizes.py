"""The memory that reading weights uses in addition to them."""

UNDOING_BYTES = 2**20
"""The memory for undoing an interleaving (or one pair of rows, if larger)."""
