"""The doctor's findings about ports, certificates, and STUN and TURN servers that answer, refuse or are silent."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aioice import stun
from aioice.turn import make_integrity_key

from agent_tts.config.settings import Settings
from agent_tts.doctor import network
from agent_tts.doctor.finding import Finding, Verdict
from tests.certificates import make_certificate

pytestmark = pytest.mark.real_time  # the servers run in threads

USER, PASSWORD, REALM = "ann", "open-sesame", "test"
MAPPED = ("198.51.100.7", 4_242)

Answer = Callable[[bytes, tuple[str, int]], stun.Message | None]


@contextlib.contextmanager
def server(answer: Answer) -> Iterator[int]:
    """A UDP server in a thread; yields its port. An empty datagram ends it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                data, address = sock.recvfrom(2_048)
                if not data:
                    return
                if (message := answer(data, address)) is not None:
                    sock.sendto(bytes(message), address)

        thread = threading.Thread(target=serve, name="udp server")
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            sock.sendto(b"", sock.getsockname())
            thread.join()


def reply(request: stun.Message, kind: stun.Class, **attributes: Any) -> stun.Message:
    named = {name.replace("_", "-"): value for name, value in attributes.items()}
    return stun.Message(request.message_method, kind, transaction_id=request.transaction_id, attributes=named)


def stun_server(data: bytes, _: tuple[str, int]) -> stun.Message:
    return reply(stun.parse_message(data), stun.Class.RESPONSE, XOR_MAPPED_ADDRESS=MAPPED)


def turn_server(data: bytes, _: tuple[str, int]) -> stun.Message:
    """The part of RFC 5766 that an allocation needs."""
    request = stun.parse_message(data)
    key = make_integrity_key(USER, REALM, PASSWORD)
    if not request.check_message_integrity(key):
        return reply(request, stun.Class.ERROR, ERROR_CODE=(401, "Unauthorized"), NONCE=b"once", REALM=REALM)
    answer = reply(
        request, stun.Class.RESPONSE, XOR_RELAYED_ADDRESS=MAPPED, XOR_MAPPED_ADDRESS=("127.0.0.1", 1), LIFETIME=600
    )
    answer.add_message_integrity(key)
    return answer


def asked(url: str, **fields: str) -> Finding:
    """The finding about one server."""
    settings = Settings.model_validate({"ice_servers": [{"urls": [url], **fields}]})
    (finding,) = [finding for finding in network.webrtc(settings) if finding.what == "ice server"]
    return finding


def test_a_stun_server_reports_our_address() -> None:
    with server(stun_server) as port:
        finding = asked(f"stun:127.0.0.1:{port}")
    assert (finding.verdict, finding.found.rpartition(" ")[2]) == (Verdict.GOOD, "198.51.100.7:4242")


def test_a_turn_server_is_queried_with_its_credentials() -> None:
    with server(turn_server) as port:
        right = asked(f"turn:127.0.0.1:{port}", username=USER, credential=PASSWORD)
        wrong = asked(f"turn:127.0.0.1:{port}", username=USER, credential="guess")
    assert (right.verdict, right.found.rpartition(" ")[2]) == (Verdict.GOOD, "198.51.100.7:4242")
    assert (wrong.verdict, wrong.advice) == (Verdict.BAD, "are username and credential right?")
    assert "guess" not in wrong.found


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ANSWER_S", 0.3)
    with server(lambda *_: None) as port:
        for kind in ("stun", "turn"):
            finding = asked(f"{kind}:127.0.0.1:{port}")
            assert finding.verdict is Verdict.NOTE
            assert "no answer in 0.3 s" in finding.found


def test_an_unreachable_server_is_a_note_and_an_invalid_url_is_bad() -> None:
    assert asked("stun:nowhere.invalid").verdict is Verdict.NOTE
    assert asked("turn:127.0.0.1:1?transport=tcp").verdict is Verdict.NOTE
    assert asked("http://turn.example").verdict is Verdict.BAD


def test_the_node_uses_the_first_server_of_each_kind() -> None:
    settings = Settings.model_validate({"ice_servers": [{"urls": ["stun:nowhere.invalid", "stun:nowhere.invalid"]}]})
    assert "of 2 stun URLs the node uses one" in [finding.found for finding in network.webrtc(settings)]


def test_the_process_of_a_used_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (finding,) = network.port(Settings(port=taken.getsockname()[1]))
    assert finding.verdict is Verdict.BAD
    assert f"process {os.getpid()}" in finding.found
    assert "--port" in finding.advice


@pytest.mark.parametrize(
    ("days", "verdict", "said"),
    [(30, Verdict.GOOD, "good until"), (3, Verdict.NOTE, "good until"), (-1, Verdict.BAD, "expired on")],
)
def test_the_expiry_of_a_certificate_is_checked(tmp_path: Path, days: int, verdict: Verdict, said: str) -> None:
    settings = Settings.model_validate({"tls": make_certificate(tmp_path, days=days).settings})
    (finding,) = network.tls(settings)
    assert (finding.verdict, said in finding.found) == (verdict, True)


def test_a_public_node_without_tls_is_noted() -> None:
    settings = Settings.model_validate({"host": "0.0.0.0", "auth": {"api_keys": ["k"]}})
    (finding,) = network.tls(settings)
    assert (finding.verdict, "HTTPS" in finding.advice) == (Verdict.NOTE, True)
