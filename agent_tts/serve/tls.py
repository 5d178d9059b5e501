"""What a node encrypts its connections by: a certificate and its key, from files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

from agent_tts.config.settings import Tls
from agent_tts.errors import SettingsError


def server_context(tls: Tls) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the certificate of the settings; None where they have none.

    Raises:
        SettingsError: the files cannot be used; the message says which, why, and what to do.
    """
    if tls.cert is None:
        return None
    for setting, path in (("tls.cert", tls.cert), ("tls.key", tls.key or tls.cert)):
        try:
            Path(path).expanduser().read_bytes()
        except OSError as error:
            raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    cert = Path(tls.cert).expanduser()
    key = None if tls.key is None else Path(tls.key).expanduser()
    try:
        context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        raise SettingsError(f"tls: {_why(error, tls)}") from None
    return context


def _refuse_passphrase() -> NoReturn:
    """OpenSSL would ask the terminal for it."""
    raise SettingsError("tls.key has a passphrase, which nobody is there to type: openssl pkey -in OLD -out NEW")


def _why(error: ssl.SSLError, tls: Tls) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {tls.key or tls.cert} is not that of the certificate in {tls.cert}"
    if error.reason == "EE_KEY_TOO_SMALL":
        return f"the key of {tls.cert} is too short: make one of 2048 bits of RSA, or of P-256"
    hint = "" if tls.key is not None else "; if the key is in a file of its own, name it with tls.key"
    return (
        f"{tls.cert} with {tls.key or tls.cert} is no PEM certificate with its key ({error.reason or 'no PEM'}){hint}"
    )
