"""Tokens equal those of transformers for the whole text, for any split; work is linear."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from agent_tts.bench.checkpoint import FIRST_SPECIAL, write_tokenizer
from agent_tts.errors import SettingsError
from agent_tts.text.tokens import TokenFeed, Tokenizer, kinds, last_boundary
from tests.examples import CUTS, examples, split
from tests.model import oracle
from tests.text.pieces import KINDS, PIECES, SPECIAL

IM_START, IM_END = 151_644, 151_645

_KNOWN = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
_TEXTS = st.text(KINDS, max_size=8) | st.lists(
    st.sampled_from([*PIECES, *SPECIAL, "\ud83d", "\udc4b"]) | st.text(max_size=3), max_size=20
).map("".join)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer files of a checkpoint: ids as released, few merges."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def released(checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint)


@pytest.fixture(scope="module")
def upstream(checkpoint: Path) -> Any:
    return oracle.tokenizer(checkpoint)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary that merges any two bytes, in random order: a wrong cut almost always changes its tokens."""
    folder = tmp_path_factory.mktemp("pairs")
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(product(symbols, repeat=2))
    random.Random(0).shuffle(merges)
    names = [*symbols, *("".join(pair) for pair in merges)]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}), "utf-8")
    (folder / "merges.txt").write_text("\n".join(map(" ".join, merges)), "utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer(pairs: Path) -> Tokenizer:
    return Tokenizer.load(pairs)


@pytest.fixture(scope="module")
def references(pairs: Path) -> list[Any]:
    """Both tokenizers of transformers, configured to read special tokens as text."""
    files = str(pairs / "vocab.json"), str(pairs / "merges.txt")
    import transformers

    classes = transformers.Qwen2Tokenizer, transformers.Qwen2TokenizerFast
    return [each(*files, split_special_tokens=True) for each in classes]


def fed(tokenizer: Tokenizer, pieces: list[str]) -> list[int]:
    feed = TokenFeed(tokenizer)
    return [*(token for piece in pieces for token in feed.append(piece)), *feed.flush()]


@examples(300)
@given(text=st.lists(st.sampled_from(PIECES + SPECIAL), max_size=20).map("".join))
def test_tokens_are_those_of_transformers(tokenizer: Tokenizer, references: list[Any], text: str) -> None:
    for reference in references:
        assert tokenizer.encode(text) == reference(text).input_ids


@examples(400)
@given(text=_TEXTS, cuts=CUTS)
def test_tokens_do_not_depend_on_the_split(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    """Any pieces, single characters, or the whole text."""
    whole = tokenizer.encode(text)
    assert fed(tokenizer, split(text, cuts)) == whole
    assert fed(tokenizer, list(text)) == whole
    assert fed(tokenizer, [text]) == whole


@examples(100)
@given(texts=st.lists(_TEXTS, max_size=4), cuts=CUTS)
def test_a_flush_ends_a_text_and_begins_another(tokenizer: Tokenizer, texts: list[str], cuts: list[int]) -> None:
    feed = TokenFeed(tokenizer)
    for text in texts:
        found = [token for piece in split(text, cuts) for token in feed.append(piece)]
        assert [*found, *feed.flush()] == tokenizer.encode(text)
    assert feed.flush() == []


@examples(200)
@given(text=_KNOWN, cuts=CUTS)
def test_tokens_come_with_the_piece_that_makes_them_certain(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    """After every piece the tokens of the text up to its last boundary are complete."""
    feed = TokenFeed(tokenizer)
    found: list[int] = []
    length = 0
    for piece in split(text, cuts):
        length += len(piece)
        found += feed.append(piece)
        assert found == tokenizer.encode(text[: last_boundary(kinds(text[:length]))])


def test_no_text_makes_a_special_token(released: Tokenizer, upstream: Any) -> None:
    for text in SPECIAL:
        assert max(released.encode(f"a{text} {text}{text}")) < FIRST_SPECIAL
    assert upstream("<|im_start|>").input_ids == [IM_START]  # a tokenizer whose user writes control tokens


@examples(300)
@given(text=_TEXTS)
def test_tokens_spell_their_text_in_its_normal_form(tokenizer: Tokenizer, text: str) -> None:
    said = re.sub("[\ud800-\udfff]", "\ufffd", text)
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", said)


def test_a_lone_surrogate_is_a_replacement_character(tokenizer: Tokenizer) -> None:
    """Even if its other half comes in the next piece: a split never changes a text."""
    replaced = tokenizer.encode("a\ufffd\ufffdb")
    assert tokenizer.encode("a\ud83d\udc4bb") == replaced
    assert fed(tokenizer, ["a\ud83d", "\udc4bb"]) == replaced


@examples(100)
@given(text=_KNOWN)
def test_the_prompt_equals_the_references(released: Tokenizer, upstream: Any, text: str) -> None:
    """Its parts are slices of one string, unless a line break of the text merges with the one before it."""
    assume(not set("\r\n") & set(text[: len(text) - len(text.lstrip())]))
    prompt = upstream(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n").input_ids
    assert (*prompt[:3],) == released.role(IM_START)
    assert prompt[3:-5] == released.encode(text)
    instruction = upstream(f"<|im_start|>user\n{text}<|im_end|>\n").input_ids
    assert (*instruction,) == released.instruction(text, IM_START, IM_END)


def test_a_line_break_at_the_start_belongs_to_the_text(tokenizer: Tokenizer) -> None:
    """In one string it would merge with the line break of the role."""
    role = [*tokenizer.role(IM_START)]
    assert [*role, *tokenizer.encode("\nHello")] != [IM_START, *tokenizer.encode("assistant\n\nHello")]
    assert [*role, *tokenizer.encode(" Hello")] == [IM_START, *tokenizer.encode("assistant\n Hello")]


@pytest.mark.parametrize("unit", ["a", " ", "\n", "!", "\u0301", "가", "\u11a8", "7", "a ", " !a", "\t$"])
def test_work_is_linear(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    """Every character is visited three times and encoded once, even if characters come one by one."""
    looked, encoded = 0, 0
    encode = Tokenizer.encode

    def counted_look(kinds: str) -> int:
        nonlocal looked
        looked += len(kinds)
        return last_boundary(kinds)

    def counted_encode(self: Tokenizer, text: str) -> list[int]:
        nonlocal encoded
        encoded += len(text)
        return encode(self, text)

    text = unit * (20_000 // len(unit))
    whole = tokenizer.encode(text)
    monkeypatch.setattr("agent_tts.text.tokens.last_boundary", counted_look)
    monkeypatch.setattr(Tokenizer, "encode", counted_encode)
    assert fed(tokenizer, list(text)) == whole
    assert looked <= 3 * len(text)
    assert encoded == len(text)


def test_tokenizer_json_alone_gives_the_same_tokens(pairs: Path, references: list[Any], tmp_path: Path) -> None:
    references[1].backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "Hello <|endoftext|>, 你好! don't"
    assert Tokenizer.load(tmp_path).encode(text) == Tokenizer.load(pairs).encode(text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"vocab.json: No such file or directory; a checkpoint has vocab.json with merges.txt, or tokenizer.json"),
        ({"vocab.json": "{}"}, "merges.txt: No such file"),
        ({"vocab.json": "{}", "merges.txt": ""}, "some bytes have no token"),
        ({"vocab.json": "{", "merges.txt": ""}, "is broken"),
        ({"vocab.json": "[]", "merges.txt": ""}, "is broken"),
        ({"vocab.json": '{"a": -1}', "merges.txt": ""}, "is broken"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b"}, "is broken"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a a a"}, "is broken"),
        ({"tokenizer.json": "{}"}, "is broken"),
        (
            {"tokenizer.json": '{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}}'},
            "is not byte-level BPE",
        ),
    ],
)
def test_invalid_tokenizer_files_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=message) as raised:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) not in str(raised.value)
