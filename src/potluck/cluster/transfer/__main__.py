"""Entry point: ``python -m potluck.cluster.transfer CONTROL_FD DOORS_FD [CONNECTIONS_FD]
SETTINGS_JSON``.
"""

from __future__ import annotations

import json
import sys

from potluck.cluster.transfer.messages import TransferSettings
from potluck.cluster.transfer.process import run_transfer

if __name__ == "__main__":
    control, doors, *connections = map(int, sys.argv[1:-1])
    run_transfer(
        TransferSettings(**json.loads(sys.argv[-1])),
        control,
        doors,
        connections[0] if connections else None,
    )
