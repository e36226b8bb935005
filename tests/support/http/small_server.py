"""The HTTP address over a toy gateway in a process of its own, with few descriptors.

Started as ``python -m support.http.small_server LIMIT HELD``: LIMIT descriptors, HELD of them in
use by something else. Prints its address, and ends when its input does.
"""

from __future__ import annotations

import logging
import os
import resource
import sys

from support.http.api_server import running_api

from potluck.api.config import ApiConfig, ApiLimits


def main() -> None:
    limit, num_held = map(int, sys.argv[1:])
    logging.basicConfig(level=logging.WARNING)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(num_held)]
    with running_api(ApiConfig(limits=ApiLimits(head_seconds=3))) as api:
        print(api.url, flush=True)
        sys.stdin.read()
    for descriptor in held:
        os.close(descriptor)


if __name__ == "__main__":
    main()
