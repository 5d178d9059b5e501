"""The writer of one connection, without a socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.utils import ClientDisconnected

from agent_tts.config.settings import Timeouts
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.transports.writer import Writer


class Closed:
    """A transport as uvloop's is once it is closed."""

    def is_closing(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("unable to perform operation on a closed transport; the handler is closed")


async def nothing(*_: object) -> None: ...


async def test_a_client_that_left_in_its_handshake_is_no_fault() -> None:
    """uvicorn logs a traceback of every other error."""
    scope = {"extensions": {CONNECTION: SimpleNamespace(transport=Closed())}}
    with pytest.raises(ClientDisconnected):
        Writer(scope, nothing, Timeouts())
