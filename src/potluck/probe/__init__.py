"""Find the devices of this machine, and test and measure which backends work on them."""

__all__ = [
    "all_detectors",
    "cache",
    "cases",
    "chips",
    "choose",
    "detector",
    "doctor",
    "gpus",
    "node_host",
    "probe",
    "trials",
]
