"""`agent-tts detect`: whether an audio file is synthetic speech, by a running node or on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_tts.cli.node import answer_of, read_clip, request
from agent_tts.config.hub import watermark_folder
from agent_tts.config.loading import load_settings
from agent_tts.errors import SettingsError
from agent_tts.voices.detection import Detection, detect

DETECTING_S = 300.0  # for a node to look, after the clips that wait before


def run(file: Path, watermark: str | None, url: str | None, key: str | None, *, as_json: bool) -> None:
    """Print what was found."""
    if url:
        if watermark is not None:
            raise SettingsError("--watermark: a running node (--url, AGENT_TTS_URL) has its own: leave it out")
        files = {"audio_sample": (file.name, read_clip("", file, None))}
        found = answer_of(Detection, request("POST", url, key, "detect", files=files, timeout_s=DETECTING_S))
    else:
        settings = load_settings(overrides={"watermark": watermark} if watermark else None)
        clip = read_clip("", file, settings.voices.clip_bytes)
        found = asyncio.run(detect(clip, watermark_folder(settings), max_s=settings.voices.clip_s))
    print(found.model_dump_json(indent=2) if as_json else told(found))


def told(found: Detection) -> str:
    """The findings, a line each."""
    lines = ["comment: the file says that it is synthetic speech" if found.comment else "comment: none of a node"]
    if found.watermark is None:
        lines.append("watermark: not looked for; --watermark audioseal does")
    else:
        lines.append(f"watermark: in {found.watermark.share:.0%} of the audio, message {found.watermark.message}")
    lines.append("synthetic speech" if found.synthetic else "no mark was found, which proves nothing")
    return "\n".join(lines)
