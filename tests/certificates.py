"""Self-signed certificates for tests."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of 127.0.0.1 and localhost, signed with its own key."""

    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """Values of the settings section `tls`."""
        return {"cert": str(self.cert), "key": str(self.key)}

    def client(self) -> ssl.SSLContext:
        """A TLS context that trusts only this certificate."""
        return ssl.create_default_context(cafile=str(self.cert))


def make_certificate(folder: Path, *, days: float = 30.0, passphrase: bytes | None = None) -> Certificate:
    """Make a certificate that is valid for `days` days from now; a negative number makes an expired one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    form = serialization.PrivateFormat.PKCS8
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    return made


def make_signer(folder: Path) -> Certificate:
    """A certificate for C2PA, with its issuer's, and its key."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: str, public: ec.EllipticCurvePublicKey, *, is_authority: bool) -> bytes:
        usage = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), is_authority)
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        usage |= dict.fromkeys((*others, "encipher_only", "decipher_only"), False) | {"digital_signature": True}
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example Authority")]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)]),
            public_key=public,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=1),
            not_valid_after=now + datetime.timedelta(days=30),
        )
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if not is_authority:
            purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
            builder = builder.add_extension(purpose, critical=False)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    folder.mkdir(exist_ok=True)
    made = Certificate(folder / "signer.pem", folder / "signer-key.pem")
    chain = [signed("Example Node", key.public_key(), is_authority=False)]
    chain.append(signed("Example Authority", authority.public_key(), is_authority=True))
    made.cert.write_bytes(b"".join(chain))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    return made
