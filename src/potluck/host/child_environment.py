"""What child processes inherit of this process's environment: everything but its secrets.

Workers and the children that load vendors' libraries run code that is not Potluck's. None of it
needs the cluster's secret: a worker is handed its node's certificate. The token for the hub stays
with those that fetch weights. Every child is started with what ``child_environment`` gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

SECRET_VARIABLE = "POTLUCK_SECRET"
"""The cluster's secret, for ``potluck up``."""

INVITATION_VARIABLE = "POTLUCK_INVITATION"
"""An invitation to a cluster, for the first ``potluck up``: arguments are seen by other users."""

_HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""What the library ``huggingface_hub`` reads."""


def child_environment(
    environment: Mapping[str, str] | None = None, *, may_fetch: bool = False
) -> dict[str, str]:
    """``environment``, or this process's, without secrets.

    ``may_fetch``: with the token for the hub, for a child that fetches files from there.
    """
    held_back = {SECRET_VARIABLE, INVITATION_VARIABLE, *(() if may_fetch else _HUB_TOKENS)}
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if name not in held_back}
