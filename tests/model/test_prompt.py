"""The prompt has the layout of the training, in every mode."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tts.model.config import ModelConfig
from agent_tts.model.prompt import (
    VECTOR,
    CodecSide,
    Position,
    Prompt,
    PromptVoice,
    Reference,
    build_prompt,
    text_needed,
)
from tests.model import tiny

PAD, BOS, EOS = 151671, 151672, 151673  # tts_pad, tts_bos, tts_eos
C_PAD, C_BOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = 2148, 2149, 2154, 2155, 2156, 2157
RYAN, ENGLISH, CHINESE, SICHUAN = 3061, 2050, 2055, 2062
FRAMES = tuple(tuple(range(16 * frame, 16 * frame + 16)) for frame in range(5))
CONFIG = tiny.config("custom_voice")


def prompt(voice: PromptVoice = PromptVoice("ryan"), config: ModelConfig = CONFIG, **options: Any) -> Prompt:  # noqa: B008
    return build_prompt(config, voice, **dict[str, Any](role=(1, 2, 3), text=(10, 11)) | options)


def table(found: Prompt) -> list[tuple[int | None, CodecSide]]:
    """The prefix, and the position that the first frame step reads."""
    return [*found.prefix, (found.text[0] if found.text else PAD, found.start)]


ROLE = [(1, None), (2, None), (3, None)]
HEAD = [(PAD, NOTHINK), (PAD, THINK_BOS), (PAD, THINK_EOS), (PAD, RYAN), (BOS, C_PAD)]
VECTOR_HEAD = [*HEAD[:3], (PAD, VECTOR), HEAD[4]]


def test_streaming_starts_with_the_first_token_beside_bos() -> None:
    found = prompt()
    assert table(found) == [*ROLE, *HEAD, (10, C_BOS)]
    assert found.text == (10, 11, EOS)
    assert found.complete


def test_incomplete_text_has_no_end() -> None:
    found = prompt(complete=False)
    assert found.text == (10, 11)
    assert not found.complete
    assert prompt(text=(), complete=False).prefix == found.prefix  # known before the first word


def test_whole_text_precedes_the_speech() -> None:
    found = prompt(streaming=False)
    assert table(found) == [*ROLE, *HEAD, (10, C_PAD), (11, C_PAD), (EOS, C_PAD), (PAD, C_BOS)]
    assert found.text == ()


def test_a_language_has_its_think_tokens() -> None:
    thought = [(PAD, THINK), (PAD, THINK_BOS), (PAD, ENGLISH), (PAD, THINK_EOS), (PAD, RYAN), (BOS, C_PAD)]
    assert table(prompt(language="English")) == [*ROLE, *thought, (10, C_BOS)]
    assert len(prompt(language="English").prefix) == 9  # the tenth is an ordinary step


@pytest.mark.parametrize(
    ("speaker", "language", "spoken"),
    [
        ("eric", "chinese", SICHUAN),
        ("Eric", "AUTO", SICHUAN),
        ("eric", "english", ENGLISH),
        ("ryan", "Chinese", CHINESE),
        ("ryan", "auto", None),
        (None, "auto", None),
        (VECTOR, "chinese", CHINESE),
    ],
)
def test_a_speaker_of_a_dialect_speaks_it_in_chinese(speaker: Any, language: str, spoken: int | None) -> None:
    codecs = [position.codec for position in prompt(PromptVoice(speaker), language=language).prefix]
    thought = [THINK, THINK_BOS, spoken, THINK_EOS] if spoken else [NOTHINK, THINK_BOS, THINK_EOS]
    assert codecs[3 : 3 + len(thought)] == thought


def test_a_designed_voice_has_no_speaker() -> None:
    assert table(prompt(PromptVoice())) == [*ROLE, *HEAD[:3], HEAD[4], (10, C_BOS)]


def test_a_cloned_voice_has_its_vector() -> None:
    assert table(prompt(PromptVoice(VECTOR))) == [*ROLE, *VECTOR_HEAD, (10, C_BOS)]


def test_an_instruction_comes_first_but_not_for_the_small_model() -> None:
    assert table(prompt(instruct=(7, 8))) == [(7, None), (8, None), *ROLE, *HEAD, (10, C_BOS)]
    assert prompt(instruct=(7, 8), config=tiny.config("custom_voice", tiny.SAME_WIDTH)) == prompt()


def reference(words: int, frames: int) -> PromptVoice:
    return PromptVoice(VECTOR, Reference(tuple(range(100, 100 + words)), FRAMES[:frames]))


def test_a_reference_is_aligned_with_its_transcript() -> None:
    """Text longer than the reference: the rest follows."""
    found = prompt(reference(1, 2))
    assert table(found) == [*ROLE, *VECTOR_HEAD, (100, C_BOS), (10, FRAMES[0]), (11, FRAMES[1])]
    assert found.text == (11, EOS)


def test_a_reference_longer_than_the_text_is_padded() -> None:
    found = prompt(reference(1, 5))
    beside = [(100, C_BOS), (10, FRAMES[0]), (11, FRAMES[1]), (EOS, FRAMES[2]), (PAD, FRAMES[3]), (PAD, FRAMES[4])]
    assert table(found) == [*ROLE, *VECTOR_HEAD, *beside]
    assert found.text == ()


def test_a_reference_with_the_whole_text_before_it() -> None:
    found = prompt(reference(1, 2), streaming=False)
    words = [(100, C_PAD), (10, C_PAD), (11, C_PAD), (EOS, C_PAD)]
    assert table(found) == [*ROLE, *VECTOR_HEAD, *words, (PAD, C_BOS), (PAD, FRAMES[0]), (PAD, FRAMES[1])]
    assert found.text == ()


def test_a_reference_needs_its_share_of_an_incomplete_text() -> None:
    voice = reference(2, 5)
    assert text_needed(voice) == 3
    with pytest.raises(ValueError, match="more of the text"):
        prompt(voice, complete=False)
    found = prompt(voice, text=(10, 11, 12), complete=False)
    assert Position(12, FRAMES[3]) == found.prefix[-1]
    assert found.text == ()
    whole = prompt(voice, text=(10, 11, 12, 13))
    assert (whole.prefix, whole.start, whole.text) == (found.prefix, found.start, (13, EOS))


def test_an_incomplete_text_cannot_precede_the_speech() -> None:
    with pytest.raises(ValueError, match="more of the text"):
        prompt(streaming=False, complete=False)


def test_unknown_speakers_and_languages_are_named() -> None:
    with pytest.raises(ValueError, match=r"no speaker bob; it has serena, .*ryan"):
        prompt(PromptVoice("bob"))
    with pytest.raises(ValueError, match=r"does not speak klingon; it speaks .*english"):
        prompt(language="klingon")
