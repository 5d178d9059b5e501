"""What the tests of engines share: tokenizers, time to read texts, and memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.text.tokens import Tokenizer


@pytest.fixture(scope="session", autouse=True)
def shared_tokenizers() -> Iterator[None]:
    """`Tokenizer.load` loads equal files once: it takes as long as ten frames."""
    load, known = Tokenizer.load, dict[bytes, Tokenizer]()

    def once(folder: Path) -> Tokenizer:
        files = [path for path in sorted(folder.glob("*")) if path.name in ("vocab.json", "merges.txt")]
        key = sha256(b"".join(path.read_bytes() for path in [*files, *folder.glob("tokenizer*.json")])).digest()
        if key not in known:
            known[key] = load(folder)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "load", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def reads_all_texts_in_a_step() -> Iterator[None]:
    """Also on a busy machine: which step reads a text would depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_tts.engine.qwen3.engine.READ_S", 60)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_engine_after_another() -> Iterator[None]:
    """An engine refers to itself, so that a closed one keeps its 45 MB until the next collection of garbage."""
    begin = Qwen3Engine.__init__

    def collected(engine: Qwen3Engine, *given: Any, **named: Any) -> None:
        gc.collect()
        begin(engine, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qwen3Engine, "__init__", collected)
        yield
