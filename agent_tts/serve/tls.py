"""TLS: a certificate and its key from files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

from agent_tts.config.settings import Tls
from agent_tts.errors import SettingsError


def server_context(tls: Tls) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the certificate in the settings; None without one.

    Raises:
        SettingsError: a file cannot be used; the message says which, why, and what to do.
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
    """OpenSSL would ask for it on the terminal."""
    raise SettingsError("tls.key has a passphrase; remove it: openssl pkey -in OLD -out NEW")


def _why(error: ssl.SSLError, tls: Tls) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {tls.key or tls.cert} does not belong to the certificate in {tls.cert}"
    if error.reason == "EE_KEY_TOO_SMALL":
        return f"the key of {tls.cert} is too short: use RSA with 2048 bits, or P-256"
    hint = "" if tls.key is not None else "; if the key is in another file, set tls.key"
    return f"{tls.cert} with {tls.key or tls.cert} is not a PEM certificate and key ({error.reason or 'no PEM'}){hint}"
