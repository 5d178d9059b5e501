"""The process that looks for a watermark: `python -m agent_tts.voices.detect_child PID FOLDER`.

On stdin: 24 kHz mono, pcm_f32le. On stdout: JSON, `share` and `message` of a `FoundWatermark`. FOLDER has AudioSeal's
detector. The front must not import torch; this process does. It ends with its parent, PID.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from agent_tts.system.in_child import die_with, take_stdout

NICE = 10
THREADS = 2  # leaves the other cores to running speech


def main() -> int:
    """Run the process. It takes stdout before it imports libraries that might print."""
    parent, folder = sys.argv[1:]
    die_with(int(parent))
    out = take_stdout()
    if sys.platform != "win32":
        os.nice(NICE)
    import numpy as np
    import torch

    from agent_tts.errors import SettingsError
    from agent_tts.model.entries import CheckpointError
    from agent_tts.model.watermark_weights import load_detector

    torch.set_num_threads(THREADS)
    try:
        detector = load_detector(Path(folder))
    except CheckpointError as error:
        print(f"{SettingsError.__name__}: audioseal.source: {error}", file=sys.stderr)
        return 1
    share, message = detector.detect(torch.from_numpy(np.frombuffer(sys.stdin.buffer.read(), "<f4").copy()))
    with open(out, "w") as stdout:
        json.dump({"share": share, "message": message}, stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
