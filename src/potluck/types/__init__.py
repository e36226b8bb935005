"""Immutable values and protocols that packages share, without I/O or heavy imports."""
