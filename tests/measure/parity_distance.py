"""Distance between two computations of the model, compared under the same forced codes.

Free-running models diverge at the first code that rounding changes and tell nothing after it. Under forced codes every
frame is a separate comparison and shows which part of the model is off, and by how much. The request has fixed tokens,
and a voice of the checkpoint's kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from agent_tts.model.config import ModelConfig
from agent_tts.model.frame import CONTROL_CODES
from agent_tts.model.prompt import VECTOR, Prompt, PromptVoice, Reference, build_prompt

# Tokens of the released vocabulary.
ASSISTANT, USER, NEWLINE = (77091, 198), (872, 198), 198  # "assistant\n", "user\n"
TEXT = (9707, 11, 1879, 0, 1096, 374, 264, 1273, 13)  # "Hello, world! This is a test."
NEVER = float("-inf")
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
        return cls(config, PromptVoice(VECTOR, reference), vector=vector)

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


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits under forced codes, float32 on the CPU: F frames, V codes of the talker, P of the predictor."""

    talker: Tensor  # [F, V]: of the first code, masked or not
    predictor: Tensor  # [F, 15, P]: of the other codes


class Subject(Protocol):
    """A computation of the model to test."""

    def speak(self, request: Request, codes: Tensor) -> Logits:
        """The logits of a request whose codes, int64[F, 16], are given."""

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64[F, 16] -> waveform float32[F * 1920] on the CPU."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of logits or of a waveform from the reference."""

    part: str
    max_error: float
    relative_error: float  # max_error as a share of the reference's largest value
    snr_db: float  # reference power over error power; infinite if equal
    kl: float | None = None  # of logits: mean Kullback-Leibler divergence from the reference, nats
    agreement: float | None = None  # of logits: share of positions at which the most likely code is the same


def distances(
    request: Request, codes: Tensor, reference: Callable[[], Subject], tested: Mapping[str, Callable[[], Subject]]
) -> dict[str, list[Distance]]:
    """Distance of each of `tested` from the reference, by part. One model is in memory at a time.

    Args:
        codes: int64[F, 16], forced upon all.
        reference, tested: functions that load a model.
    """
    expected, waveform = _said(reference(), request, codes)
    found: dict[str, list[Distance]] = {}
    for name, load in tested.items():
        logits, sound = _said(load(), request, codes)
        found[name] = [
            *logits_distances(expected, logits, request.drawable(len(codes))),
            signal_distance("codec", waveform, sound),
        ]
    return found


def _said(subject: Subject, request: Request, codes: Tensor) -> tuple[Logits, Tensor]:
    return subject.speak(request, codes), subject.decode(codes)


def logits_distances(reference: Logits, tested: Logits, drawable: Tensor) -> Iterator[Distance]:
    """Of the talker, over its drawable codes bool[F, V]; of the predictor, and of each of its codes."""
    yield logits_distance("talker", *(logits.talker.masked_fill(~drawable, NEVER) for logits in (reference, tested)))
    yield logits_distance("predictor", reference.predictor, tested.predictor)
    for index in range(reference.predictor.shape[1]):
        yield logits_distance(f"code {index + 1}", reference.predictor[:, index], tested.predictor[:, index])


def logits_distance(part: str, reference: Tensor, tested: Tensor) -> Distance:
    """Of logits [..., V]; codes that the reference forbids do not count."""
    counts = reference > NEVER
    signal = signal_distance(part, reference[counts], tested[counts])
    said, heard = (logits.double().log_softmax(-1) for logits in (reference, tested))
    kl = (said.exp() * (said - heard)).where(counts, 0).sum(-1).mean().item()
    agreement = (reference.argmax(-1) == tested.argmax(-1)).double().mean().item()
    return Distance(part, signal.max_error, signal.relative_error, signal.snr_db, kl, agreement)


def signal_distance(part: str, reference: Tensor, tested: Tensor) -> Distance:
    """Of values of any shape, element by element."""
    expected, error = reference.double(), tested.double() - reference.double()
    largest = error.abs().max()
    snr_db = 10 * torch.log10(expected.square().mean() / error.square().mean())
    return Distance(part, largest.item(), (largest / expected.abs().max()).item(), snr_db.item())
