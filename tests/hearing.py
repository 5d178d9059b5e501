"""The recogniser: its decoder holds the GIL and stands in the way of a node in this process for a second.

So time stands still meanwhile; in a test in real time another process decodes.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from tests import virtual_time
from tests.recogniser import recognise

HEARING_S = 60.0


async def heard(pcm: bytes, rate: int = 24_000) -> str:
    """The recognised sentence of `tests.recogniser`, or "" for none. `pcm`: mono pcm_s16le."""
    if virtual_time.can_stop():
        with virtual_time.stopped():
            return recognise(np.frombuffer(pcm, "<i2"), rate)
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
