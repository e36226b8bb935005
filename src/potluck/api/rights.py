"""Identify a client by its key and determine what it is allowed to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.api.dialect import bearer_key
from potluck.api.errors import ApiError
from potluck.api.keys import ApiKeys, Role
from potluck.types.console import Console

DASHBOARD = "potluck dashboard"
"""The name of a holder who presents a token of that command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The holder of a valid key or token."""

    name: str
    can_administer: bool


class Rights:
    """The valid keys and tokens. Without ``keys``, anyone can use the API."""

    def __init__(self, keys: ApiKeys | None, console: Console | None) -> None:
        self._keys = keys
        self._console = console

    @property
    def needs_key(self) -> bool:
        """Whether using the API requires a key."""
        return self._keys is not None

    def holder(self, presented: str) -> Holder | None:
        """Return the holder of this key or token; None if it is not valid.

        Takes the same time for every key and token.
        """
        key = None if self._keys is None else self._keys.find(presented)
        is_token = self._console is not None and self._console.admits(presented)
        if is_token:
            return Holder(name=DASHBOARD, can_administer=True)
        if key is None:
            return None
        return Holder(name=key.name, can_administer=key.role is Role.ADMIN)

    def require_administrator(self, headers: Mapping[str, str]) -> None:
        """Raise ``ApiError`` unless a request is allowed to administer the cluster.

        The key has to be in ``Authorization``, which a page of another origin cannot send without
        permission.
        """
        key = bearer_key(headers)
        holder = None if key is None else self.holder(key)
        if holder is not None and holder.can_administer:
            return
        if holder is not None:
            what = f"the API key {holder.name} has no right to administer the cluster"
        elif key is not None:
            what = "the key or token is not valid, or has expired"
        else:
            what = "administering the cluster needs a right that this request does not show"
        raise ApiError(
            403,
            f"{what} (run potluck dashboard on this node's machine, which prints an address with a"
            " token, or use an API key with the role admin)",
            code="administrator_required",
        )
