"""How clips are decoded in these tests: in processes with enough time, or in this process."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from agent_tts.system.processes import ModuleResult
from agent_tts.voices import decode_child


@pytest.fixture(autouse=True)
def decoders_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a loaded machine: the processes that decode and encode have a low priority."""
    monkeypatch.setattr("agent_tts.voices.enroll.DECODE_TIMEOUT_S", 300.0)


@pytest.fixture
def decodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips that cannot harm are decoded in this process, for tests of what becomes of them."""

    async def run(_: str, max_s: str, *, data: bytes, **__: Any) -> ModuleResult:
        out, said = io.BytesIO(), io.StringIO()
        with contextlib.redirect_stderr(said):
            code = decode_child.answer(io.BytesIO(data), float(max_s), out)
        return ModuleResult(code, out.getvalue(), said.getvalue())

    monkeypatch.setattr("agent_tts.voices.enroll.run_child", run)
