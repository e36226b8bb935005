"""Measure how fast an engine is on a unit, with standard programs."""
