"""Wheels: files, names and tags."""
