"""The coordinator of a deployment: its plan, its edges, its recovery."""

__all__ = ["attempt", "claiming", "deployment", "survey", "ways", "weights"]
