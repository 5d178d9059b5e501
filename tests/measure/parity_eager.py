"""Our own model, step by step, in any precision on any device: in PyTorch or with its fused kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agent_tts.model.codec import ENCODING, Codec
from agent_tts.model.config import ModelConfig
from agent_tts.model.frame import CONTROL_CODES, FrameModel
from agent_tts.model.predictor import Choose
from agent_tts.model.sampling import SamplingParams
from agent_tts.model.speech import SpeechModel, accelerate
from agent_tts.model.weights import CODEC, MODEL, build, plan
from tests.measure.parity_distance import Logits
from tests.measure.parity_request import Request

# No dependence on earlier draws.
PLAIN = SamplingParams(temperature=0, predictor_temperature=0, repetition_penalty=1, min_frames=0)


@dataclass(frozen=True, slots=True)
class Eager:
    """A `SpeechModel` with one row, a frame at a time."""

    speech: SpeechModel

    @classmethod
    def load(cls, folder: Path, device: str, dtype: torch.dtype) -> Eager:
        """Raises:
        CheckpointError: the checkpoint cannot be used.
        """
        return cls(_load(folder, device, dtype, dtype))

    @classmethod
    def load_fused(cls, folder: Path, device: str) -> Eager:
        """The model as an engine runs it on a GPU: bfloat16, with the codec in float16.

        Raises:
            CheckpointError: the checkpoint cannot be used.
        """
        speech = _load(folder, device, torch.bfloat16, torch.float16)
        accelerate(speech)
        return cls(speech)

    @property
    def model(self) -> FrameModel:
        return self.speech.frame

    @property
    def codec(self) -> Codec:
        return self.speech.codec

    def draw(self, request: Request, frames: int) -> Tensor:
        """The most likely codes, int64[F, 16] on the CPU; never the end of speech."""
        drawn: list[Tensor] = []

        def choose(logits: Tensor, codebook: int) -> Tensor:
            speech = logits if codebook else logits[:, :-CONTROL_CODES]
            code = speech.argmax(-1)
            drawn.append(code.cpu())
            return code

        self._run(request, frames, choose)
        return torch.cat(drawn).view(frames, -1)

    def speak(self, request: Request, codes: Tensor) -> Logits:
        heard: list[list[Tensor]] = [[] for _ in range(codes.shape[1])]

        def choose(logits: Tensor, codebook: int) -> Tensor:
            frame = len(heard[codebook])
            heard[codebook].append(logits[0].cpu())
            return codes[frame, codebook : codebook + 1].to(logits.device)

        self._run(request, len(codes), choose)
        first, *others = (torch.stack(logits) for logits in heard)
        return Logits(first, torch.stack(others, dim=1))

    def decode(self, codes: Tensor) -> Tensor:
        weight = next(self.codec.parameters())
        state = self.codec.init_state(1, weight.device, weight.dtype)
        run = torch.ones(1, dtype=torch.bool, device=weight.device)
        pcm = [self.speech.decode(state, frame[None].to(weight.device), run, None)[0].float().cpu() for frame in codes]
        return torch.cat(pcm)

    def _run(self, request: Request, frames: int, choose: Choose) -> None:
        prompt = request.prompt
        positions = len(prompt.prefix) + max(frames, len(prompt.text))
        state = self.model.init_state(1, positions)
        self.model.admit(state, 0, prompt, PLAIN, request.vector)
        for _ in range(frames):
            self.model.step(state, torch.ones_like(state.ended), choose)


def _load(folder: Path, device: str, dtype: torch.dtype, codec_dtype: torch.dtype) -> SpeechModel:
    config = ModelConfig.read(folder)
    model, codec = build(FrameModel, config), build(Codec, config.codec)
    plans = (
        plan(model, folder, MODEL, dtype, unused=("speaker_encoder.",)),
        plan(codec, folder, CODEC, codec_dtype, unused=ENCODING),
    )
    for each in plans:
        each.load(device)
    return SpeechModel(model, codec)
