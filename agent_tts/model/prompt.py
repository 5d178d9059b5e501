"""The prompt as a table: the text side and the codec side of each position.

Pure values: no tensors, no model. The last position is not part of the prefix: the first frame step reads it. Its codec
side is `start`, its text side the first entry of `text`, as in every later step. So the prefix of a streaming prompt
can be computed before the first word, and cached for the next request of the same voice.

    position              text side                 codec side
    instruct              instruct                  -                       absent without an instruction
    role                  <|im_start|>assistant \\n  -
    head                  tts_pad ...               think think_bos LANGUAGE think_eos | nothink think_bos think_eos
                          tts_pad                   SPEAKER                 absent for a designed voice
                          tts_bos                   pad
    streaming             text ... tts_eos          bos, then what was said
    whole text            text ... tts_eos          pad ...
                          tts_pad ...               bos, then what was said
    reference, streaming  ref_text text ... tts_eos bos, reference frames, then what was said
    reference, whole      ref_text text tts_eos     pad ...
                          tts_pad ...               bos, reference frames, then what was said
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent_tts.model.config import ModelConfig

NOTHING, VECTOR = -1, -2  # among the numbers of a prompt; the vector is the speaker's, in the place of an id


# One position of the codec side: an id, `VECTOR`, the 16 codes of a frame, or nothing.
CodecSide = int | tuple[int, ...] | None


class Position(NamedTuple):
    text: int | None  # id of the text vocabulary
    codec: CodecSide


@dataclass(frozen=True, slots=True)
class Reference:
    """The clip of a cloned voice, which the text continues."""

    text: tuple[int, ...]  # tokens of the transcript
    frames: tuple[tuple[int, ...], ...]  # 16 codes for each 80 ms of the clip


@dataclass(frozen=True, slots=True)
class PromptVoice:
    """A named speaker, `VECTOR`, that with a reference, or None (a designed voice)."""

    speaker: str | int | None = None
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, split at the position that the first frame step reads."""

    prefix: tuple[Position, ...]
    shared: int  # its leading positions that do not depend on the text
    start: CodecSide  # codec side of the first frame step
    text: tuple[int, ...]  # text side of the frame steps, one a frame; tts_pad for ever after
    complete: bool  # `text` ends with tts_eos, or tts_eos is in the prefix: no more may be added
    # What it was made of, for an engine that lays it out itself: the known tokens of the text, language, instructions.
    source: tuple[tuple[int, ...], str, str] = field(default=((), "auto", ""), compare=False)

    @property
    def length(self) -> int:
        """Entries of `numbers`: one for each position of the prefix, and `start`."""
        return len(self.prefix) + 1

    def numbers(self, codebooks: int, begin: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """Entries `begin` to `end` of the prompt, the last of which is `start`: int64[n, 1 + codebooks].

        The token of the text, then the codes; NOTHING where there is none, VECTOR first where the speaker's vector
        belongs.
        """
        entries = self.prefix[begin:end]
        if end is None or end > len(self.prefix):
            entries += (Position(None, self.start),)
        numbers = np.full((len(entries), 1 + codebooks), NOTHING, np.int64)
        for row, (text, codec) in zip(numbers, entries, strict=True):
            if text is not None:
                row[0] = text
            if isinstance(codec, tuple):
                row[1:] = codec
            elif codec is not None:
                row[1] = codec
        return numbers


def language_id(config: ModelConfig, language: str, speaker: str | int | None) -> int | None:
    """The id of a language, None for `auto`; in Chinese and auto that of a speaker's dialect. ValueError: unknown."""
    name = language.lower()
    dialect = config.talker.spk_is_dialect.get(speaker.lower()) if isinstance(speaker, str) else None
    if dialect and name in ("auto", "chinese"):
        name = dialect
    if name == "auto":
        return None
    if name not in config.talker.codec_language_id:
        raise ValueError(f"the model does not speak {language}; it speaks {', '.join(config.talker.codec_language_id)}")
    return config.talker.codec_language_id[name]


def speaker_codec(config: ModelConfig, speaker: str | int | None) -> tuple[int, ...]:
    """The speaker's position, or none. Raises ValueError: the model does not know the speaker."""
    if not isinstance(speaker, str):
        return () if speaker is None else (speaker,)
    if speaker.lower() not in config.talker.spk_id:
        raise ValueError(f"the model has no speaker {speaker}; it has {', '.join(config.talker.spk_id)}")
    return (config.talker.spk_id[speaker.lower()],)


def takes_instructions(config: ModelConfig) -> bool:
    """The small model with named speakers was not trained on instructions."""
    return config.tts_model_size != "0b6" or config.tts_model_type != "custom_voice"


def text_needed(voice: PromptVoice) -> int:
    """How many tokens of an unfinished text must be known before its prompt can be built."""
    return max(0, len(voice.reference.frames) - len(voice.reference.text)) if voice.reference else 0


def build_prompt(
    config: ModelConfig,
    voice: PromptVoice,
    *,
    role: Sequence[int],
    text: Sequence[int],
    complete: bool = True,
    streaming: bool = True,
    language: str = "auto",
    instruct: Sequence[int] = (),
) -> Prompt:
    """Lays out the prompt of one request.

    Args:
        role: tokens of `<|im_start|>assistant\\n`.
        text: the tokens of the text that are known so far.
        complete: that is all of the text.
        streaming: text beside the speech; False puts the whole text before it.
        language: a language of the model, or `auto`.
        instruct: tokens of `<|im_start|>user\\n{instruct}<|im_end|>\\n`, or none. A model that does not take them
            gets none.
    Raises:
        ValueError: unknown speaker or language, or too little of the text is known.
    """
    talker = config.talker
    if not complete and (not streaming or len(text) < text_needed(voice)):
        raise ValueError("more of the text must be known before this prompt can be built")
    if not takes_instructions(config):
        instruct = ()

    language_code = language_id(config, language, voice.speaker)
    head: list[CodecSide] = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    if language_code is not None:
        head = [talker.codec_think_id, talker.codec_think_bos_id, language_code, talker.codec_think_eos_id]
    head += [*speaker_codec(config, voice.speaker), talker.codec_pad_id]

    prefix = [Position(token, None) for token in (*instruct, *role)]
    prefix += [Position(config.tts_pad_token_id, codec) for codec in head[:-1]]
    prefix += [Position(config.tts_bos_token_id, head[-1])]

    # From here on the sides are independent: `words` on the text side, `said` on the codec side.
    known = len(prefix)
    words = [*text, config.tts_eos_token_id] if complete else [*text]
    said: list[CodecSide] = [talker.codec_bos_id]
    if voice.reference:
        known += len(voice.reference.text)
        words = [*voice.reference.text, *words]
        said += voice.reference.frames

    *before, start = said
    if not streaming:
        prefix += [Position(word, talker.codec_pad_id) for word in words]
        words = []
    beside = [*words[: len(before)], *[config.tts_pad_token_id] * (len(before) - len(words))]
    prefix += [Position(word, codec) for word, codec in zip(beside, before, strict=True)]
    return Prompt(tuple(prefix), min(known, len(prefix)), start, tuple(words[len(before) :]), complete)
