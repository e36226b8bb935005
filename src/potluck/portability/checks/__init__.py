"""Checks whether wheels install and load on hosts."""
