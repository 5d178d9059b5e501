"""What the tests of the engine share: tokenizers, time to read texts, and memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.model.talker import Predictor
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


_one_after_another = Predictor.forward


def _all_at_once(predictor: Predictor, _: object, hidden: Tensor, first: Tensor, __: object) -> tuple[Tensor, Tensor]:
    """As `Predictor.forward`: the likeliest codes, which depend on the talker alone and not on each other."""
    x = predictor.small_to_mtp_projection(hidden + first)
    codes = [head(x).argmax(-1) for head in predictor.lm_head]
    embedded = [table(code) for table, code in zip(predictor.codec_embedding, codes, strict=True)]
    return torch.stack(codes, dim=1), torch.stack([first, *embedded], dim=1)


@pytest.fixture(scope="module")
def quick_predictor() -> Iterator[None]:
    """A frame takes half its time, in modules about what the engine does with frames, whatever their codes are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "forward", _all_at_once)
        yield


@pytest.fixture
def whole_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test of such a module that compares codes with those of others."""
    monkeypatch.setattr(Predictor, "forward", _one_after_another)
