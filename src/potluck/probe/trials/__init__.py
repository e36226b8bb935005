"""Trials of backends: running, measuring, caching and repeating them."""
