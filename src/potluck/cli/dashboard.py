"""``potluck dashboard``: the address of the page, with the right to administer the cluster."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit_json, note
from potluck.cli.placing import result_of
from potluck.types.document import Document


class DashboardDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck dashboard --json``.

    Anyone who has its token can administer the cluster until it expires.
    """

    schema: Literal["potluck.dashboard/1"] = "potluck.dashboard/1"
    url: Annotated[str, msgspec.Meta(pattern="^https?://.*/#token=pt-")]
    """Address of the page, with the token."""
    token: Annotated[str, msgspec.Meta(pattern="^pt-[A-Za-z0-9_-]{43}$")]
    """The token for ``Authorization: Bearer``."""
    valid_seconds: float
    """Validity while the agent runs."""


def dashboard(json: JsonOption = False, state: StateOption = None) -> None:
    """Print the address of this node's page, with a token that lets it deploy and undeploy models.

    Anyone who has the address can administer the cluster until the token expires or the agent ends.
    Without the token the page shows the cluster, and nobody can change anything there.
    """
    made = result_of(state_directory(state), "dashboard", {})
    url = f"{page_address(made['address'])}/#token={made['token']}"
    if json:
        seconds = made["valid_seconds"]
        emit_json(DashboardDocument(url=url, token=made["token"], valid_seconds=seconds))
        return
    print(url)
    note(
        f"the token is valid for {made['valid_seconds'] / 3600:g} hours, as long as the agent runs"
    )


def page_address(address: str) -> str:
    """Return where a browser on this machine reaches a server that may listen on all addresses."""
    parts = urlsplit(address)
    host = ipaddress.ip_address(parts.hostname or "")
    if not host.is_unspecified:
        return address
    local = "127.0.0.1" if host.version == 4 else "[::1]"
    return urlunsplit((parts.scheme, f"{local}:{parts.port}", "", "", ""))
