"""How many descriptors the agent may have open at a time (``RLIMIT_NOFILE``).

Many systems start processes with a soft limit of 1,024 for the sake of programs that use
``select(2)``, which cannot handle higher descriptors, and a far higher hard limit for the rest
(systemd's defaults are 1,024 and 524,288). The agent uses ``epoll(7)``.
"""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

MOST_DESCRIPTORS = 65_536
"""More than an agent can use: a few per connection, worker and open file. Some libraries walk over
all descriptors that the limit allows, which 1,048,576 (a common hard limit) makes slow."""


def raise_descriptor_limit(most: int = MOST_DESCRIPTORS) -> int:
    """Raise the soft limit to the hard limit, to ``most`` at the highest; return what is in force.

    A limit that is higher already stays as it is, and so does one that cannot be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("the limit of %d open files cannot be raised to %d: %s", soft, wanted, error)
        return soft
    return wanted
