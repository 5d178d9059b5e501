"""Computations of the model that are compared: our own, and the reference implementation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_tts.bench.peer_process import import_qwen_tts
from agent_tts.errors import SettingsError
from agent_tts.model.codec import Codec
from agent_tts.model.config import SamplingParams
from agent_tts.model.frame import CONTROL_CODES, FrameModel
from agent_tts.model.speech import SpeechModel, accelerate
from agent_tts.model.talker import Choose
from tests.measure.parity_distance import NEWLINE, TEXT, Logits, Request
from tests.model import tiny

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
        tiny.admit(self.model, state, 0, prompt, PLAIN, request.vector)
        for _ in range(frames):
            self.model.step(state, torch.ones_like(state.ended), choose)


def _load(folder: Path, device: str, dtype: torch.dtype, codec_dtype: torch.dtype) -> SpeechModel:
    return SpeechModel(tiny.frame_model(folder, dtype, device), tiny.codec(folder, codec_dtype, device))


Hook = Callable[[Any, Any, Tensor], Tensor]


class Upstream:
    """`qwen_tts.Qwen3TTSModel` in float32 on the CPU.

    Raises:
        SettingsError: the package is not installed, or cannot be imported.
    """

    def __init__(self, folder: Path) -> None:
        try:
            package = import_qwen_tts()
        except (ImportError, OSError) as error:
            raise SettingsError(f"--reference upstream: {error}: pip install qwen-tts==0.1.1") from error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = package.Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager")
        self._model = whole.model

    def speak(self, request: Request, codes: Tensor) -> Logits:
        talker = self._model.talker
        heads = (talker.codec_head, *talker.code_predictor.lm_head)
        heard: list[list[Tensor]] = [[] for _ in heads]
        with ExitStack() as stack:
            for codebook, head in enumerate(heads):
                hook = _forcing(codes[:, codebook], heard[codebook])
                stack.callback(head.register_forward_hook(hook).remove)
            # One frame more: the codes of a frame are completed when the next one begins.
            self._model.generate(
                **_inputs(request), do_sample=False, subtalker_dosample=False, max_new_tokens=len(codes) + 1
            )
        first, *others = (torch.stack(logits[: len(codes)]) for logits in heard)
        return Logits(first, torch.stack(others, dim=1))

    def decode(self, codes: Tensor) -> Tensor:
        with torch.inference_mode():
            waveform: Tensor = self._model.speech_tokenizer.model.decoder(codes.T[None])
        return waveform.flatten()


def _forcing(codes: Tensor, heard: list[Tensor]) -> Hook:
    """Keeps the logits [1, T, V] of each call, and replaces them by others whose most likely code is the given one."""

    def hook(_module: Any, _inputs: Any, logits: Tensor) -> Tensor:
        frame = len(heard)
        heard.append(logits[0, -1].detach().clone())
        forced = torch.zeros_like(logits)
        forced[..., codes[min(frame, len(codes) - 1)]] = 1
        return forced

    return hook


def _inputs(request: Request) -> dict[str, Any]:
    """A request as the arguments of upstream's `generate`."""
    voice, end = request.voice, (request.config.im_end_token_id, NEWLINE)
    inputs: dict[str, Any] = {
        "input_ids": [torch.tensor([[*request.role, *TEXT, *end, *request.role]])],
        "languages": ["auto"],
        "non_streaming_mode": False,
    }
    if isinstance(voice.speaker, str):
        inputs["speakers"] = [voice.speaker]
    if request.instruct:
        inputs["instruct_ids"] = [torch.tensor([request.instruct])]
    if voice.reference:
        inputs["ref_ids"] = [torch.tensor([[*request.role, *voice.reference.text, *end]])]
        inputs["voice_clone_prompt"] = {
            "ref_code": [torch.tensor(voice.reference.frames)],
            "ref_spk_embedding": [request.vector],
            "x_vector_only_mode": [False],
            "icl_mode": [True],
        }
    return inputs
