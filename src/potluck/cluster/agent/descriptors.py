"""The limit of the agent's open file descriptors (``RLIMIT_NOFILE``).

Many systems start processes with a soft limit of 1,024, for programs that use ``select(2)``, which
cannot handle higher descriptors, and with a far higher hard limit (systemd's defaults are 1,024 and
524,288). The agent uses ``epoll(7)``.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

MOST_DESCRIPTORS = 65_536
"""More than an agent needs: a few per connection, worker and open file. Some libraries iterate over
all descriptors up to the limit, which 1,048,576 (a common hard limit) makes slow."""


def raise_descriptor_limit(most: int = MOST_DESCRIPTORS) -> int:
    """Raise the soft limit to the hard limit, or to ``most`` if that is lower; return the new
    limit.

    A higher limit is not lowered. If it cannot be raised, that is logged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("cannot raise the limit of %d open files to %d: %s", soft, wanted, error)
        return soft
    return wanted
