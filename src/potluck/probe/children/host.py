"""Prints a description of this machine: a document of schema ``potluck.host/1``.

Its argument is a ``potluck.probe.node_host.Hardware`` in JSON.
"""

from __future__ import annotations

import sys

import msgspec

from potluck.errors import PotluckError
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.writing import host_document
from potluck.probe.node_host import Hardware, with_hardware


def describe(hardware: str) -> dict[str, object]:
    """Return the document, or why there is none."""
    reported = msgspec.json.decode(hardware, type=Hardware)
    try:
        return host_document(with_hardware(describe_host(), reported))
    except PotluckError as error:
        return {"refused": error.message}


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(describe(sys.argv[1])).decode())
