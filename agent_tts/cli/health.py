"""`agent-tts health`: what a container's health check runs."""

from __future__ import annotations

import http.client
import ssl
import sys

from agent_tts.config.loading import load_settings

ANSWER_S = 4.0


def health(ready: bool) -> int:
    """Ask the node on this machine that has the environment's settings; the exit code, 1 when it is not well.

    Raises:
        SettingsError: the environment's settings are wrong.
    """
    settings = load_settings()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    if settings.tls.cert is None:
        connection = http.client.HTTPConnection(host, settings.port, timeout=ANSWER_S)
    else:
        context = ssl.create_default_context()
        context.check_hostname = False  # the certificate has the name that clients use
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, settings.port, timeout=ANSWER_S, context=context)
    try:
        connection.request("GET", "/ready" if ready else "/health")
        answer = connection.getresponse()
        print(answer.read(65_536).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"agent-tts: no node answers at {host}:{settings.port}: {type(error).__name__}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    return 0 if answer.status == 200 else 1
