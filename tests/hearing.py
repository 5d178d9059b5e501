"""The recogniser in a child process."""

from __future__ import annotations

import asyncio
import sys

HEARING_S = 20.0


async def heard(pcm: bytes, rate: int = 24_000) -> str:
    """The recognised sentence of `tests.recogniser`, or "" for none. `pcm`: mono pcm_s16le.

    A child process decodes: the decoder holds the GIL and would stop a node in this process.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.recogniser", str(rate)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(HEARING_S):
            text, _ = await process.communicate(pcm)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return text.decode()
