"""``potluck dashboard``: the address of the page, with the right to administer the cluster."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit, urlunsplit

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit_json, note
from potluck.cli.placing import result_of


def dashboard(json: JsonOption = False, state: StateOption = None) -> None:
    """Print the address of this node's page, with a token that lets it deploy and undeploy models.

    Anyone who has the address can administer the cluster until the token expires or the agent ends.
    Without the token the page shows the cluster, and nobody can change anything there.
    """
    made = result_of(state_directory(state), "dashboard", {})
    url = f"{page_address(made['address'])}/#token={made['token']}"
    if json:
        emit_json(
            {
                "schema": "potluck.dashboard/1",
                "url": url,
                "token": made["token"],
                "valid_seconds": made["valid_seconds"],
            }
        )
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
