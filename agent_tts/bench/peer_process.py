"""Another engine in a process of its own: `python -m agent_tts.bench.peer_process`, see `workers`.

Its job says which engine, on which checkpoint, and what it is to say how often; it is ready once the model is loaded;
its answer has a sample of each request, and the GPU memory that is taken.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent_tts.bench.checkpoint import ICL, SyntheticClone
from agent_tts.bench.scenario import CallListener, CallSample
from agent_tts.bench.workers import ready, work
from agent_tts.errors import Unsupported
from agent_tts.model.config import ModelConfig

MIB = 1 << 20
# Packages for the 25 Hz tokenizer, which no model here uses: they may be absent, or fail with another build of torch.
UNUSED = ("torchaudio.compliance.kaldi", "sox", "onnxruntime")
FAILURES = (ImportError, OSError, RuntimeError, AttributeError)  # of a package that is absent, or broken
METHODS = {
    "custom_voice": "generate_custom_voice",
    "voice_design": "generate_voice_design",
    "base": "generate_voice_clone",
}

# Speaks once, and yields each chunk when it has come: float[n], -1 to 1, 24 kHz.
Speak = Callable[[], Iterator[NDArray[np.floating[Any]]]]


def _qwen_tts(job: dict[str, Any], config: ModelConfig) -> Speak:
    """Upstream's package: it hands out nothing before the whole request is spoken."""
    package = import_qwen_tts()
    model = package.Qwen3TTSModel.from_pretrained(
        job["model"], device_map=job["device"], dtype=getattr(torch, job["dtype"]), attn_implementation="sdpa"
    )
    speak = getattr(model, METHODS[config.tts_model_type])
    # One more than its frames: it draws a frame's last codes when the next one begins.
    arguments = _voice(job, config, package) | {"max_new_tokens": job["frames"] + 1}
    return lambda: iter(speak(job["text"], language="auto", **arguments)[0][:1])


def _faster_qwen3_tts(job: dict[str, Any], config: ModelConfig) -> Speak:
    """faster-qwen3-tts, which streams: a chunk for each frame, as we do."""
    if not job["device"].startswith("cuda"):
        raise Unsupported("faster-qwen3-tts needs a CUDA GPU")
    package = import_qwen_tts()  # it imports that, too
    model = import_module("faster_qwen3_tts").FasterQwen3TTS.from_pretrained(
        job["model"], device=job["device"], dtype=getattr(torch, job["dtype"])
    )
    speak, frames = getattr(model, f"{METHODS[config.tts_model_type]}_streaming"), job["frames"]
    arguments = _voice(job, config, package) | {"max_new_tokens": frames, "min_new_tokens": frames, "chunk_size": 1}
    return lambda: (wave for wave, _, _ in speak(text=job["text"], language="auto", **arguments))


ENGINES = {"qwen-tts": _qwen_tts, "faster-qwen3-tts": _faster_qwen3_tts}


def _voice(job: dict[str, Any], config: ModelConfig, package: Any) -> dict[str, Any]:
    """Who speaks, as both packages take it."""
    if config.tts_model_type == "custom_voice":
        return {"speaker": job["voice"]}
    if config.tts_model_type == "voice_design":
        return {"instruct": job["instructions"]}
    clone, icl = SyntheticClone.synthetic(config.talker.hidden_size, config.codec.codebook_size), job["voice"] == ICL
    item = package.VoiceClonePromptItem(
        ref_code=torch.from_numpy(clone.codes).to(job["device"]) if icl else None,
        ref_spk_embedding=torch.from_numpy(clone.vector).to(job["device"], getattr(torch, job["dtype"])),
        x_vector_only_mode=not icl,
        icl_mode=icl,
        ref_text=clone.transcript if icl else None,
    )
    return {"voice_clone_prompt": [item]}


def timed(speak: Speak) -> CallSample:
    """One request, as a client of a node has it. All is looked at in the end, which takes the engine no time."""
    sample = CallSample(sent_at=time.monotonic())
    came = [(time.monotonic(), chunk) for chunk in speak()]
    sample.ended_at = time.monotonic()
    listener = CallListener(sample, 0.0, (0.0, math.inf))
    for at, chunk in came:
        listener.heard(at, np.rint(32_767 * np.clip(chunk, -1, 1)).astype("<i2").tobytes())
    return sample


async def main(job: dict[str, Any]) -> dict[str, Any]:
    """See `work`."""
    import transformers  # 60 MB, which `timed` does not need

    transformers.logging.set_verbosity_error()
    config = ModelConfig.read(Path(job["model"]))
    speak = ENGINES[job["engine"]](job, config)
    for _ in range(job["warmups"]):
        timed(speak)
    await ready()
    found = [asdict(timed(speak)) for _ in range(job["requests"])]
    memory_mib = None  # in use by all processes
    if job["device"].startswith("cuda"):
        free, total = torch.cuda.mem_get_info(job["device"])
        memory_mib = (total - free) // MIB
    return {"requests": found, "memory_used_mib": memory_mib}


def import_qwen_tts() -> Any:
    """The package qwen-tts, with empty modules for unused ones. Raises ImportError, OSError: something is missing."""
    added: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package and what it imports
        try:
            for package in UNUSED:
                try:
                    import_module(package)
                except FAILURES:
                    added += _stand_in(package)
            return import_module("qwen_tts")
        finally:
            for name in added:
                del sys.modules[name]


def _stand_in(package: str) -> list[str]:
    """Put empty modules in the place of a package and of those that it is in; their names."""
    added: list[str] = []
    parts = package.split(".")
    for depth, part in enumerate(parts):
        parent, name = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
        if name not in sys.modules:
            added.append(name)
            sys.modules[name] = module_from_spec(ModuleSpec(name, None))
            if parent:
                setattr(sys.modules[parent], part, sys.modules[name])
    return added


if __name__ == "__main__":
    work(main)
