"""The process that turns a clip into a voice: `python -m agent_tts.voices.encode_child PID vector|reference FOLDER...`.

On stdin: 24 kHz mono, pcm_f32le. On stdout: the arrays of a cloned voice, as the library stores them. The front must
not import torch; this process does, and holds the encoders of one checkpoint at a time. It ends with its parent, PID.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from agent_tts.system.in_child import die_with, take_stdout

NICE = 10
THREADS = 2  # leaves the other cores to running speech


def encode(samples: bytes, folders: Iterable[Path], *, reference: bool) -> bytes:
    """The output. Checkpoints give the same codes: only the first encodes. SettingsError: one cannot be used."""
    import numpy as np
    import torch
    from safetensors.torch import save

    from agent_tts.model.clone import VoiceEncoder, add_silence

    torch.set_num_threads(THREADS)
    waveform = torch.from_numpy(np.frombuffer(samples, "<f4").copy())
    arrays = {}
    for folder in folders:
        wants_codes = reference and "codes" not in arrays
        encoder = VoiceEncoder.load(folder, vector_only=not wants_codes)
        vector = encoder.vector(waveform)
        arrays[f"vector_{len(vector)}"] = vector.contiguous()
        if wants_codes:
            arrays["codes"] = encoder.codes(add_silence(waveform)).to(torch.int16).contiguous()
    return save(arrays)


def main() -> int:
    """Run the process. It takes stdout before it imports libraries that might print."""
    parent, what, *folders = sys.argv[1:]
    die_with(int(parent))
    out = take_stdout()
    if sys.platform != "win32":
        os.nice(NICE)
    from agent_tts.errors import SettingsError

    try:
        voice = encode(sys.stdin.buffer.read(), map(Path, folders), reference=what == "reference")
    except SettingsError as error:
        print(f"{SettingsError.__name__}: {error}", file=sys.stderr)
        return 1
    with open(out, "wb") as stdout:
        stdout.write(voice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
