"""The reference implementation, the package qwen-tts: its own generation with forced codes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_tts.bench.peer_process import import_qwen_tts
from agent_tts.errors import SettingsError
from tests.measure.parity_distance import Logits
from tests.measure.parity_request import NEWLINE, TEXT, Request

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
