"""Frozen values and protocols that join the packages. No I/O, no heavy imports."""
