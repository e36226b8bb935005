"""The agent that schedules a deployment: its plan, its edges, its recovery."""
