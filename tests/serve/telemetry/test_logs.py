"""Log lines: JSON and text, without spoken text."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.node

SECRET = "the moon is made of rice"
PROGRAM = f"""
import asyncio, logging, sys
from loguru import logger
from agent_tts.serve.telemetry.logs import log_to_stderr, report_fault
log_to_stderr("info", sys.argv[1])

def fail(text, kind=ValueError):
    raise kind(text)

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_fault)
    loop.call_soon(fail, "{SECRET}")
    task = loop.create_task(asyncio.to_thread(fail, "{SECRET}"))
    await asyncio.wait([task])
    del task
    loop.call_exception_handler({{"message": "a socket was left open"}})

logger.debug("not told")
logger.info("engine {{}} is up", 3)
asyncio.run(main())
try:
    fail("{SECRET}")
except ValueError:
    logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
try:
    fail("no such device", OSError)
except OSError:
    logger.exception("a file")
logging.getLogger("aiortc").warning("a library's line")
"""


def lines(form: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, timeout=60, check=True)
    assert SECRET not in done.stderr
    return done.stderr.splitlines()


def test_json_lines_are_objects_with_searchable_fields() -> None:
    told = [json.loads(line) for line in lines("json")]
    assert [line["message"] for line in told] == [
        "engine 3 is up",
        "event loop: a callback or a task failed",
        "event loop: a callback or a task failed",
        "event loop: a socket was left open",
        "uvicorn.error: Exception in ASGI application",
        "a file",
        "aiortc: a library's line",
    ]
    assert [line["level"] for line in told] == ["info", *["error"] * 5, "warning"]
    assert all(line["time"].endswith("Z") for line in told)
    assert [line["source"] for line in told[-3:]] == ["uvicorn.error", "__main__", "aiortc"]
    faults = [line["fault"].splitlines()[-1] for line in told if "fault" in line]
    assert faults == ["ValueError", "ValueError", "ValueError", "OSError: no such device"]
    assert all("in fail" in line["fault"] for line in told if "fault" in line)


def test_text_lines_have_the_same_content() -> None:
    told = lines("text")
    assert any(line.endswith(" INFO    engine 3 is up") for line in told)
    assert "OSError: no such device" in told
    assert told.count("ValueError") == 3


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_below_the_level_are_not_logged(form: str) -> None:
    assert not any("not told" in line for line in lines(form))
