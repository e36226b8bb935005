"""Credentials that a cluster must not take, made without Potluck's own code."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.cluster.edges import authority

from potluck.cluster.network.trust.authority import Authority
from potluck.cluster.network.trust.credentials import Credentials
from potluck.types.cluster import NodeId

_LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_FAR_AHEAD = datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)


def named(
    common_name: str,
    issuer: Authority,
    *,
    key_identifier_of: x509.Certificate | None = None,
    not_after: datetime.datetime = _FAR_AHEAD,
) -> Credentials:
    """A certificate for ``common_name`` that is sound unless the arguments say otherwise."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = (key_identifier_of or issuer.certificate).extensions.get_extension_for_class(
        x509.SubjectKeyIdentifier
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(_LONG_AGO)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier.value),
            critical=False,
        )
        .sign(issuer.private_key, hashes.SHA256())
    )
    return Credentials(
        node_id=NodeId(common_name),
        certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
        private_key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authority_pem=issuer.certificate.public_bytes(serialization.Encoding.PEM),
    )


def expired(node_id: NodeId) -> Credentials:
    """Signed by the cluster's own authority, and out of date."""
    return named(node_id, authority(), not_after=_LONG_AGO + datetime.timedelta(days=1))


def forged(node_id: NodeId) -> Credentials:
    """From an authority that has all of the cluster's but its key: names, serial, identifiers."""
    real = authority().certificate
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        issuer_name=real.issuer,
        subject_name=real.subject,
        public_key=key.public_key(),
        serial_number=real.serial_number,
        not_valid_before=_LONG_AGO,
        not_valid_after=_FAR_AHEAD,
        extensions=list(real.extensions),
    )
    fake = Authority(private_key=key, certificate=builder.sign(key, hashes.SHA256()))
    return named(node_id, fake, key_identifier_of=real)
