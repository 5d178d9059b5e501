from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from agent_tts.serve.telemetry.logs import BURST, LINES_PER_S, Repeats

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


@functools.cache
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
    assert not any("not told" in line for line in told)  # below the level


def test_a_place_has_a_burst_and_a_rate_and_others_have_their_own() -> None:
    repeats = Repeats()
    assert [repeats.take("here", 0.0) for _ in range(BURST + 3)] == [*[0] * BURST, None, None, None]
    assert repeats.take("there", 0.0) == 0
    assert repeats.take("here", 0.5 / LINES_PER_S) is None
    assert repeats.take("here", 1.5 / LINES_PER_S) == 4
    assert repeats.take("here", 1.5 / LINES_PER_S) is None
    assert [repeats.take("here", 1e6) for _ in range(BURST + 1)] == [1, *[0] * (BURST - 1), None]


SPOKEN = """
from agent_tts.serve.telemetry.logs import log_to_stderr
from loguru import logger
log_to_stderr("debug")
for name in ("pipecat.services", "pipecat.transports.smallwebrtc.connection"):
    logger.patch(lambda record: record.update(name=name)).warning("what was said")
    logger.patch(lambda record: record.update(name=name)).error("a failure in {}", name)
"""


def test_what_pipecat_logs_of_a_conversation_is_not_told() -> None:
    """Its connection logs a message that it cannot read, whole, as an error."""
    done = subprocess.run([sys.executable, "-c", SPOKEN], capture_output=True, text=True, timeout=60, check=True)
    assert [line.partition("ERROR   ")[2] for line in done.stderr.splitlines()] == ["a failure in pipecat.services"]


REPEATS = """
import logging, sys, time
from agent_tts.serve.telemetry import logs
logs.BURST = 2
log = logs.log_to_stderr("debug", "text")
lost = []
log.on_lost = lost.append
logs.time.monotonic = iter([0, 0, 0, 0, 9, 9]).__next__
for _ in range(5):
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
logging.getLogger("uvicorn.error").warning("another place")
for _ in range(5):
    logs.logger.debug("asked for")
assert lost == ["repeated"] * 2, lost
"""


def test_repeated_lines_of_one_place_are_left_out_and_counted() -> None:
    done = subprocess.run([sys.executable, "-c", REPEATS], capture_output=True, text=True, timeout=60, check=True)
    invalid = "WARNING uvicorn.error: Invalid HTTP request received."
    assert [line.partition(" ")[2] for line in done.stderr.splitlines()] == [
        *[invalid] * 2,
        f"{invalid} (2 more of these were left out)",
        "WARNING uvicorn.error: another place",
        *["DEBUG   asked for"] * 5,
    ]


def test_each_line_of_one_of_several_fronts_has_its_number() -> None:
    """On the descriptor that it is given: its own stderr is for what it cannot log."""
    program = (
        "from loguru import logger; from agent_tts.serve.telemetry.logs import log_to_stderr\n"
        "for form in ('text', 'json'):\n"
        "    log_to_stderr('info', form, front=3, fd=1); logger.info('it is up'); logger.remove()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    text, of_json = done.stdout.splitlines()
    assert text.endswith("front 3: it is up")
    assert json.loads(of_json)["front"] == 3
    assert not done.stderr
