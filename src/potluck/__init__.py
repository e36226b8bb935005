"""Potluck: one language model over whatever machines are on the table."""
