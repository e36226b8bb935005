"""Entry point of an acceptor.

Use ``python -m potluck.cluster.network.acceptor REPORTS_FD SERVER_FD ROUTES_FD SETTINGS``.
"""

from __future__ import annotations

import json
import sys

from potluck.cluster.network.acceptor.process import AcceptorSettings, run_acceptor

if __name__ == "__main__":
    run_acceptor(AcceptorSettings(**json.loads(sys.argv[4])), *map(int, sys.argv[1:4]))
