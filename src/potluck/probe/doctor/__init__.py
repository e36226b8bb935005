"""What stands between this machine and more speed, and the command that puts it right.

Checks are pure: each takes a :class:`~potluck.probe.doctor.case.Case` and gives findings. What they
look at is gathered before, in ``look``; nothing here changes anything.
"""
