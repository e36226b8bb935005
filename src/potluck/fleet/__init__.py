"""Machines described in a file, for plans that are made with nothing running."""
