"""Where a model goes: units, links and preferences in, a plan with reasons out. Pure."""
