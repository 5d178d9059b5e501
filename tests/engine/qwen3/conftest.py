"""What the tests of the engine share: tokenizers, and time to read texts."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

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
