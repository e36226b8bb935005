"""The coordinator of a deployment: its plan, its edges, its recovery."""
