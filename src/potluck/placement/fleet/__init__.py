"""Machines described in a file, for making plans without a running cluster."""
