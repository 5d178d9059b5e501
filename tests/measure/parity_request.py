"""The request for a comparison of models: fixed tokens, and a voice of the checkpoint's kind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_tts.model.config import ModelConfig
from agent_tts.model.frame import CONTROL_CODES
from agent_tts.model.prompt import Prompt, PromptVoice, Reference, SpeakerPlace, build_prompt

# Tokens of the released vocabulary.
ASSISTANT, USER, NEWLINE = (77091, 198), (872, 198), 198  # "assistant\n", "user\n"
TEXT = (9707, 11, 1879, 0, 1096, 374, 264, 1273, 13)  # "Hello, world! This is a test."
REFERENCE_FRAMES = 12  # more than the text's tokens, so that both alignments occur


@dataclass(frozen=True, slots=True)
class Request:
    """One request, the same for all compared models."""

    config: ModelConfig
    voice: PromptVoice
    instruct: tuple[int, ...] = ()
    vector: Tensor | None = None  # float32[H], of a cloned voice

    @classmethod
    def of(cls, config: ModelConfig) -> Request:
        """A named voice, a designed voice, or a cloned voice with a reference."""
        if config.tts_model_type == "custom_voice":
            return cls(config, PromptVoice(min(config.talker.spk_id)))
        if config.tts_model_type == "voice_design":
            instruct = (config.im_start_token_id, *USER, *TEXT, config.im_end_token_id, NEWLINE)
            return cls(config, PromptVoice(), instruct)
        noise = torch.Generator().manual_seed(0)
        size = (REFERENCE_FRAMES, config.talker.num_code_groups)
        frames = torch.randint(config.talker.code_predictor.vocab_size, size, generator=noise)
        vector = torch.randn(config.talker.hidden_size, generator=noise)
        reference = Reference(TEXT, tuple(map(tuple, frames.tolist())))
        return cls(config, PromptVoice(SpeakerPlace.VECTOR, reference), vector=vector)

    @property
    def role(self) -> tuple[int, ...]:
        return (self.config.im_start_token_id, *ASSISTANT)

    @property
    def prompt(self) -> Prompt:
        return build_prompt(self.config, self.voice, role=self.role, text=TEXT, instruct=self.instruct)

    def drawable(self, frames: int) -> Tensor:
        """bool[F, V]: drawable first codes; the end of speech is one only after the whole text is read."""
        talker = self.config.talker
        drawable = torch.ones(frames, talker.vocab_size, dtype=torch.bool)
        drawable[:, -CONTROL_CODES:] = False
        drawable[max(0, len(self.prompt.text) - 1) :, talker.codec_eos_token_id] = True
        return drawable
