"""TLS for clients of the HTTP API, which have no certificates of the cluster.

These certificates do not authenticate a node to other nodes: they name no node, and are valid for
servers only.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from potluck.cluster.trust.authority import Authority, issue_server_certificate
from potluck.cluster.trust.credentials import load_pem_chain


def client_tls_context() -> ssl.SSLContext:
    """Return a server context without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def automatic_context(authority: Authority, names: Iterable[str]) -> ssl.SSLContext:
    """Return a context with a new key and a certificate for ``names``, kept in memory only."""
    return context_of(issue_server_certificate(authority, names))


def context_of(chain_pem: bytes) -> ssl.SSLContext:
    """Return a context with the given certificate and key, such as those that an invited node
    stores.
    """
    context = client_tls_context()
    load_pem_chain(context, chain_pem)
    return context
