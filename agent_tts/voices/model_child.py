"""The process that runs a model on a clip: `python -m agent_tts.voices.model_child PID WHAT FOLDER...`.

On stdin: 24 kHz mono, pcm_f32le. On stdout, by WHAT:

    vector, reference   the arrays of a cloned voice, as the library stores them, for each checkpoint; see `encode`
    watermark           JSON, `share` and `message` of a `FoundWatermark`; FOLDER has AudioSeal's detector

The front must not import torch; this process does, and holds the encoders of one checkpoint at a time. It ends with its
parent, PID.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tts.system.in_child import REFUSAL, die_with, take_stdout

if TYPE_CHECKING:
    from torch import Tensor

NICE = 10
THREADS = 2  # leaves the other cores to running speech


def encode(waveform: Tensor, folders: Iterable[Path], *, reference: bool) -> bytes:
    """The arrays. Checkpoints give the same codes: only the first encodes. SettingsError: one cannot be used."""
    import torch
    from safetensors.torch import save

    from agent_tts.model.clone import VoiceEncoder, add_silence

    arrays = {}
    for folder in folders:
        wants_codes = reference and "codes" not in arrays
        encoder = VoiceEncoder.load(folder, vector_only=not wants_codes)
        vector = encoder.vector(waveform)
        arrays[f"vector_{len(vector)}"] = vector.contiguous()
        if wants_codes:
            arrays["codes"] = encoder.codes(add_silence(waveform)).to(torch.int16).contiguous()
    return save(arrays)


def detect(waveform: Tensor, folder: Path) -> bytes:
    """What the detector finds. Raises `SettingsError`: it cannot be used."""
    from agent_tts.errors import SettingsError
    from agent_tts.model.entries import CheckpointError
    from agent_tts.model.watermark import load_detector

    try:
        share, message = load_detector(folder).detect(waveform)
    except CheckpointError as error:
        raise SettingsError(f"audioseal.source: {error}") from None
    return json.dumps({"share": share, "message": message}).encode()


def main() -> int:
    """Run the process. It takes stdout before it imports libraries that might print."""
    parent, what, *folders = sys.argv[1:]
    die_with(int(parent))
    out = take_stdout()
    if sys.platform != "win32":
        os.nice(NICE)
    import numpy as np
    import torch

    from agent_tts.errors import SettingsError

    torch.set_num_threads(THREADS)
    waveform = torch.from_numpy(np.frombuffer(sys.stdin.buffer.read(), "<f4").copy())
    try:
        if what == "watermark":
            answer = detect(waveform, Path(folders[0]))
        else:
            answer = encode(waveform, map(Path, folders), reference=what == "reference")
    except SettingsError as error:
        print(f"{REFUSAL}{error}", file=sys.stderr)
        return 1
    with open(out, "wb") as stdout:
        stdout.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
