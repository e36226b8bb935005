"""Diagnoses what limits performance on this machine, and suggests commands that fix it.

Checks are pure: each takes a :class:`~potluck.probe.doctor.case.Case` and yields findings. ``look``
collects their input beforehand. Nothing here changes the system.
"""
