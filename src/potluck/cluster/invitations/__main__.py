"""Entry point: ``python -m potluck.cluster.invitations CHANNEL_FD SOURCE_FD``."""

from __future__ import annotations

import sys

from potluck.cluster.invitations.process import run_invitation_server

if __name__ == "__main__":
    run_invitation_server(int(sys.argv[1]), int(sys.argv[2]))
