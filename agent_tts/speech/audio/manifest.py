"""Signed manifests (C2PA) in audio files: who made a file, and that a machine made it, so that no one can change it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from loguru import logger

from agent_tts import __version__
from agent_tts.errors import Internal, SettingsError, to_install
from agent_tts.sound.provenance import DIGITAL_SOURCE
from agent_tts.speech.audio.files import CONTENT_TYPES, WAV_MARK, wav_header

SIGNABLE = ("wav", "mp3", "flac")  # formats of `FileEncoder` that have a place for a manifest

_CREATED = {"action": "c2pa.created", "digitalSourceType": DIGITAL_SOURCE}
_MANIFEST = {
    "claim_generator_info": [{"name": "agent_tts", "version": __version__}],
    "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [_CREATED]}}],
}


class ManifestSigner:
    """Signs files with one certificate. Any thread may use it.

    Args:
        certificate: PEM: the signer's certificate, then those of its issuers. C2PA wants digitalSignature and
            one of the extended usages that it lists, such as emailProtection; it refuses self-signed ones.
        key: PEM with its private key: ECDSA, Ed25519 or RSA.
        name: of the certificate's file, for errors.

    Raises:
        SettingsError: C2PA does not accept them, or c2pa-python is not installed.
    """

    def __init__(self, certificate: bytes, key: bytes, name: str) -> None:
        self.certificate, self.key = certificate, key
        _algorithm(key)
        try:
            import c2pa
        except ImportError as error:
            raise SettingsError(f"c2pa.certificate: needs c2pa-python: {to_install('c2pa')}") from error
        try:
            signed(wav_header(1) + bytes(2) + WAV_MARK, "wav", self.certificate, self.key)
        except c2pa.C2paError as error:
            raise SettingsError(f"c2pa.certificate: {name} cannot sign files: {error}") from error

    def sign(self, file: bytes, format: str) -> bytes:
        """A complete file of a `SIGNABLE` format with a manifest; 3 KB more. Takes 5 ms for 5 s of WAV.

        Raises:
            Internal: the file cannot be signed, for example because the certificate has expired.
        """
        import c2pa

        try:
            return signed(file, format, self.certificate, self.key)
        except c2pa.C2paError as error:
            logger.error("a file cannot be signed: {}", error)
            raise Internal("the file cannot be signed; the reason is in the node's log") from error


def signed(file: bytes, format: str, certificate: bytes, key: bytes) -> bytes:
    """See `ManifestSigner.sign`. Raises `C2paError`."""
    from c2pa import Builder, C2paSignerInfo, Signer

    out = io.BytesIO()
    info = C2paSignerInfo(_algorithm(key), certificate, key, None)
    with Signer.from_info(info) as signer, Builder(_MANIFEST) as builder:
        builder.sign(signer, CONTENT_TYPES[format], io.BytesIO(file), out)
    return out.getvalue()


def signer_of(certificate: str | None, key: str | None, read: Callable[[str, str], bytes]) -> ManifestSigner | None:
    """A signer with these files; None without them. Raises what `ManifestSigner` and `read` raise.

    Args:
        read: the content of a setting's file, by the names of both.
    """
    if certificate is None or key is None:
        return None
    pair = read("c2pa.certificate", certificate), read("c2pa.key", key)
    return ManifestSigner(*pair, Path(certificate).name)


def _algorithm(key: bytes) -> bytes:
    """C2PA's name of the algorithm of a private key. Raises SettingsError: there is none."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key, None)
    except (TypeError, ValueError):
        raise SettingsError("c2pa.key: it has to be a private key in PEM, without a passphrase") from None
    curves = {"secp256r1": b"es256", "secp384r1": b"es384", "secp521r1": b"es512"}
    if isinstance(private, EllipticCurvePrivateKey) and private.curve.name in curves:
        return curves[private.curve.name]
    if isinstance(private, Ed25519PrivateKey):
        return b"ed25519"
    if isinstance(private, RSAPrivateKey):
        return b"ps256"
    raise SettingsError("c2pa.key: it has to be of ECDSA (P-256, P-384, P-521), Ed25519 or RSA")
