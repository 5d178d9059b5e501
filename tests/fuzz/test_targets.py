"""Every parser of external input, with mutated real input from hypothesis and with the kept corpus.

`make atheris` searches further, guided by coverage; its findings belong in `corpus/`.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.fuzz.seeds import SEEDS, TALK
from tests.fuzz.targets import LANGUAGES, TARGETS, converse

CORPUS = Path(__file__).parent / "corpus"
TURNS = [b"\x01", b"\x01\x01", b"\x01\x01\x01"]
TEXT = st.text(max_size=10).map(str.encode)
QUICK = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def mutants(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """Real input with a few random changes to its bytes."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + draw(st.integers(1, 40))] = b""
            case 1:
                data[at:at] = draw(
                    st.binary(max_size=20) | st.text(max_size=10).map(lambda t: t.encode("utf-8", "replace"))
                )
            case 2:
                data[at:at] = data[: draw(st.integers(0, 60))] * draw(st.integers(1, 3))
            case _:
                other = draw(st.sampled_from(originals))
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


_NESTED: list[Any] = [[[[]]], {"a": {"a": []}}, ["a"], {}, []]
ODD: list[Any] = [None, True, 0, -1, 1.5, 1e308, 10**30, "", " ", "*", "x" * 300, "\ud800", "\0", *_NESTED]


@st.composite
def twisted(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A real message with fields removed, or replaced by odd values or other messages' values."""
    messages: list[dict[str, Any]] = [json.loads(line) for line in originals if line.startswith(b"{")]
    message = copy.deepcopy(draw(st.sampled_from(messages)))
    for _ in range(draw(st.integers(1, 3))):
        fields: dict[str, Any] = message
        inner: list[dict[str, Any]] = [value for value in message.values() if isinstance(value, dict) and value]
        deeper: bool = draw(st.booleans())
        if inner and deeper:
            fields = draw(st.sampled_from(inner))
        name = draw(st.sampled_from([*fields, *draw(st.sampled_from(messages))]))
        match draw(st.integers(0, 2)):
            case 0:
                fields.pop(name, None)
            case 1:
                fields[name] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case _:
                others = list(draw(st.sampled_from(messages)).values()) or ODD
                fields[name] = copy.deepcopy(draw(st.sampled_from(others)))  # a copy: it may not contain itself
    return json.dumps(message).encode()


@pytest.mark.parametrize("name", SEEDS)
def test_a_parser_accepts_or_refuses_any_input(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)

    @examples(150, suppress_health_check=QUICK)
    @given(mutants(SEEDS[name]) | st.binary(max_size=200))
    def feed(data: bytes) -> None:
        TARGETS[name](data)

    feed()


def test_every_dialect_has_seeds() -> None:
    """For a new dialect, add its clients' real messages to `seeds.TALK`."""
    assert set(LANGUAGES) <= set(TALK)


@pytest.mark.parametrize("path", LANGUAGES)
def test_a_dialect_accepts_or_refuses_any_conversation(path: str) -> None:
    """Lines of a real conversation, changed, dropped and reordered, while the engine runs."""
    originals = [line.encode() for talk in TALK[path] for line in talk.split("\n")]
    assert converse(path, originals)
    lines = st.sampled_from(originals) | twisted(originals) | mutants(originals)

    @examples(60, suppress_health_check=QUICK)
    @given(st.lists(lines | st.sampled_from(TURNS), max_size=12))
    def speak(said: list[bytes]) -> None:
        converse(path, said)

    speak()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_past_findings_stay_fixed(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
