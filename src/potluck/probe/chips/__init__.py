"""Vendors' specifications of chips, and their names."""
