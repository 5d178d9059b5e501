"""A process that launches a model's steps on real tensors, without a GPU: `python -m ... STEPS`.

Every launch goes as far as triton's cache, with the tensors that a GPU would get. Prints the number of kernels missing
from the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import triton

from agent_tts.engine.qwen3.compiling import Steps
from agent_tts.engine.qwen3.graphs import PromptInputs
from agent_tts.model.adapters import AdapterBank
from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig
from agent_tts.model.frame import PROMPT_ENTRIES, FrameModel
from agent_tts.model.kernels.ahead import CompileTarget
from agent_tts.model.kernels.architectures import architecture
from agent_tts.model.kernels.launch import Arguments, unmade
from agent_tts.model.speech import SpeechModel, put_kernels
from agent_tts.model.watermark import Watermark
from agent_tts.model.weights import Loadable, build, hollow


class Compiler:
    """Records launches."""

    def __init__(self, steps: Steps) -> None:
        self.architecture = architecture(steps.architecture)

    def launched(self, kernel: Any, arguments: Arguments) -> None:
        kernel.warmup(grid=(1,), **arguments)
        if arguments.get("out") is not None:
            arguments["out"].zero_()  # codes among them index tables


def model_of(steps: Steps) -> SpeechModel:
    """A model whose weights are zero."""
    config = ModelConfig.read(Path(steps.folder))
    watermark = build(Watermark) if steps.watermark else None
    model = SpeechModel(build(FrameModel, config), build(Codec, config.codec), watermark)
    parts: list[tuple[Loadable, str]] = [(model.frame, steps.dtype), (model.codec, steps.codec_dtype)]
    if watermark is not None:
        parts.append((watermark, steps.codec_dtype))
    for part, dtype in parts:
        hollow(part, getattr(torch, dtype))
        part.to_empty(device="cpu")
        for tensor in chain(part.parameters(), part.buffers()):
            tensor.zero_()
    return model


def main() -> None:
    steps = Steps.all_from_json(sys.argv[1])[0]
    missed: list[str] = []

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            missed.append(src.name)

    listener: Callable[..., None] = listen
    triton.knobs.compilation.listener = listener
    triton.runtime.driver.set_active(CompileTarget(architecture(steps.architecture)))
    model = model_of(steps)
    adapters = AdapterBank(model.frame, max(steps.sizes), *steps.adapters) if steps.adapters[0] else None
    put_kernels(model, adapters)
    state = model.init_state(max(steps.sizes), steps.max_model_len, max(steps.sizes) + 3 if steps.paged else None)
    with unmade(Compiler(steps)):
        prompts = PromptInputs(state.frame, PROMPT_ENTRIES, 16).entries
        for size in steps.sizes:
            model.step(state, torch.ones(size, dtype=torch.bool), torch.arange(size))
            if steps.mixed:
                model.step(state, torch.ones(size, dtype=torch.bool), torch.arange(size), model.frame.embed(prompts))
        model.frame.prefill(state.frame, prompts, None)
        alone = model.init_state(1, steps.max_model_len).codec
        codes = torch.zeros(1, 16, dtype=torch.int64)
        model.decode(alone, codes, torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64))
    print(len(missed))


if __name__ == "__main__":
    main()
