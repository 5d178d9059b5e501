"""`agent-tts voices fetch`: more voices of hibari, from where their maker keeps them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from agent_tts.cli.progress import progress
from agent_tts.errors import SettingsError, needing
from agent_tts.system.records import age_s

ANSWER_S = 30.0  # longest wait for the next bytes


def fetch(names: Sequence[str] | None) -> None:
    """Fetch voices of these names, or all, that are not here. A voice is there whole and checked, or not at all.

    Raises SettingsError: hibari is not installed or has no such voice, or one cannot be fetched or stored.
    """
    with needing("voice"):
        from hibari import voices

        from agent_tts.engine.hibari.speech import installed

    if unknown := sorted({*(names or ())} - voices.VOICES.keys()):
        raise SettingsError(f"hibari has no voice {', '.join(unknown)}: it has {', '.join(voices.VOICES)}")
    here = installed()
    wanted = {name: facts for name, facts in voices.VOICES.items() if name not in here and (not names or name in names)}
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for name, facts in wanted.items():
        path, address = Path(voices.cache_dir(), facts["file"]), voices.BASE_URL + facts["file"]
        try:
            with progress(name, facts["bytes"], DownloadColumn(), TransferSpeedColumn()) as tell:
                _download(address, path, facts["bytes"], facts["sha256"], tell)
        except OSError as error:
            raise SettingsError(f"{name} cannot be stored in {path.parent}: {error.strerror}") from error
        except httpx.HTTPError as error:
            why = f"{str(error) or type(error).__name__}; try again, or copy it to {path}"
            raise SettingsError(f"{name} cannot be fetched from {address}: {why}") from error
    told = f"are in {voices.cache_dir()}; a running node has them after a restart" if wanted else "are here"
    console.print(f"agent-tts: {', '.join(wanted) or 'all of them'} {told}")


def _download(address: str, path: Path, size: int, digest: str, tell: Callable[..., None]) -> None:
    """Store what is at the address, if it has these bytes. Raises httpx.HTTPError, OSError, SettingsError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    hashed = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob("*.part"):
        if age_s(left.stat().st_mtime_ns) > 2 * ANSWER_S:  # of a fetch that was killed: others write
            left.unlink(missing_ok=True)
    try:
        with part.open("wb") as file, httpx.stream("GET", address, timeout=ANSWER_S, follow_redirects=True) as answer:
            for content in answer.raise_for_status().iter_bytes():
                file.write(content)
                hashed.update(content)
                tell(advance=len(content))
                if file.tell() > size:
                    break
            file.flush()
            os.fsync(file.fileno())
        if hashed.hexdigest() != digest:
            raise SettingsError(
                f"what is at {address} is not the voice (its SHA-256 is another one): nothing is stored"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
