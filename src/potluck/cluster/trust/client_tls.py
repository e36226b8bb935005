"""TLS towards clients of the HTTP address, which have no certificates of the cluster.

What is made here proves nothing to other nodes: the certificate names no node, and is for servers
only.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from potluck.cluster.trust.authority import Authority, issue_server_certificate
from potluck.cluster.trust.credentials import load_pem_chain


def client_tls_context() -> ssl.SSLContext:
    """Return a context for serving clients, which has no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def automatic_context(authority: Authority, names: Iterable[str]) -> ssl.SSLContext:
    """Return a context with a new key and a certificate for ``names``, kept in memory only."""
    context = client_tls_context()
    load_pem_chain(context, issue_server_certificate(authority, names))
    return context
