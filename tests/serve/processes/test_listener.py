from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest

from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.serve.processes.listener import listen, reserve, share, url_of

pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform != "linux", reason="several fronts need Linux")]


@pytest.mark.parametrize("fronts_listen", [False, True])
def test_a_reserved_port_is_refused_to_others_before_and_while_fronts_listen(fronts_listen: bool) -> None:
    """Mutation: with SO_REUSEADDR left on, another node takes the port while the engines start."""
    settings = Settings(port=0)
    with ExitStack() as closing:
        reserved = closing.enter_context(reserve(settings))
        port = reserved.getsockname()[1]
        if fronts_listen:
            for _ in range(2):
                closing.enter_context(share(settings, port)).listen()
        for take in (listen, reserve):
            with pytest.raises(SettingsError, match="choose another --port"):
                take(Settings(port=port))
    listen(Settings(port=port)).close()


def test_a_port_stays_reserved_when_its_fronts_are_gone() -> None:
    with reserve(Settings(port=0)) as reserved:
        port = reserved.getsockname()[1]
        share(Settings(), port).close()
        with pytest.raises(SettingsError):
            listen(Settings(port=port))
        share(Settings(), port).close()


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_the_address_is_a_url(host: str, shown: str) -> None:
    try:
        listener = listen(Settings(host=host, port=0))
    except SettingsError:
        pytest.skip("this machine has no such address")
    with listener:
        assert url_of(listener, Settings()) == f"{shown}{listener.getsockname()[1]}"
