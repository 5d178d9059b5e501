"""How long engines compute for a second of speech, on the CPU: `python -m tests.measure.real_time FOLDER`.

One request at a time, all cores, 0.6B with random weights: FOLDER gets such a checkpoint and its files, 6 GB, unless
they are there. The first run of each engine is not counted. vox's q4 is no type of the product.
"""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent_tts.bench.checkpoint import write
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices, Vox
from agent_tts.engine.base import Engine
from agent_tts.engine.factory import create_engine
from agent_tts.engine.vox import files
from agent_tts.messages import Cancel
from agent_tts.options import SpeechOptions
from agent_tts.system.cores import cores
from tests.engine.driver import Spoken, appended, is_over, opened, resolved, start_of

TEXT = "I understand how frustrating that must be, and I will help you right away. Is Tuesday at nine fine? " * 2
FRAMES = 50
RUNS = 3


def checkpoint(folder: Path) -> Path:
    """The checkpoint with its file in 8 bits, and beside it a folder whose file has 4."""
    if not folder.exists():
        write(folder, size="0.6B", model_type="custom_voice")
    small = folder.with_name(f"{folder.name}-q4")
    if not small.exists():
        shutil.copytree(folder, small, copy_function=lambda source, target: Path(target).symlink_to(source))
        files._WRITTEN["q4"] = ("bf16", "q4")
        made, _ = files.convert(small, "q4", lambda done, total: None)
        made.rename(files.file_of(small, "q8"))
        digest = made.with_name(f"{made.name}.sha256")
        digest.rename(made.with_name(f"{files.file_of(small, 'q8').name}.sha256"))
    if not files.file_of(folder, "q8").exists():
        files.convert(folder, "q8", lambda done, total: None)
    return small


def took_s(engine: Engine) -> list[float]:
    """Seconds for a second of speech, of each run."""
    found = []
    options = resolved(engine, SpeechOptions(language="en", seed=1, lead_ms=None))
    for _ in range(RUNS + 1):
        spoken = Spoken()
        began = time.perf_counter()
        spoken.outputs += engine.step([start_of(0, options), *appended(0, TEXT, last=True)], [0])
        while len(spoken.frames) < FRAMES and not is_over(spoken):
            spoken.outputs += engine.step([], [0])
        found.append((time.perf_counter() - began) / spoken.seconds)
        engine.step([Cancel(0)], [])
    return found[1:]


def main(folder: Path) -> None:
    small = checkpoint(folder)
    nowhere = Voices(folder=str(folder / "voices"))

    def neural(source: Path, **settings: object) -> Settings:
        models = (Checkpoint(source=str(source)),)
        given = {"slots": 1, "voices": nowhere, "qwen3": Qwen3(models=models, device="cpu", max_model_len=512)}
        return Settings.model_validate(given | settings)

    engines: dict[str, Callable[[], Settings]] = {
        "espeak": lambda: Settings(engine="espeak", slots=1),
        "hibari": lambda: Settings(engine="hibari", slots=1),
        "vox, 0.6B, q4": lambda: neural(small, engine="vox", vox=Vox()),
        "vox, 0.6B, q8": lambda: neural(folder, engine="vox", vox=Vox()),
        "qwen3, 0.6B, PyTorch's modules in float32": lambda: neural(folder, engine="qwen3"),
    }
    print(f"{platform.machine()}, {cores():g} cores, Python {platform.python_version()}\n\n| engine | s |\n|---|---|")
    for name, settings in engines.items():
        with opened(create_engine(settings())) as engine:
            times = took_s(engine)
        print(f"| {name} | {sorted(times)[RUNS // 2]:.3f} ({min(times):.3f} to {max(times):.3f}) |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
