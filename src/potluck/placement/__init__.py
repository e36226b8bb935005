"""Placement: take units, links and preferences, and return a plan with reasons. Pure."""

__all__ = [
    "costs",
    "fleet",
    "layout",
    "links",
    "model_counting",
    "new_deployment",
    "offering",
    "plan",
    "plan_view",
    "planned",
    "rebalancing",
    "snapshot",
    "sources",
    "stage_reuse",
    "views",
]
