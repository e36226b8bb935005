"""Placement: take units, links and preferences, and return a plan with reasons. Pure."""
