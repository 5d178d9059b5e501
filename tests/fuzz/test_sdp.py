"""Invalid SDP offers: each is refused quickly or answered correctly, and none harms the node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_tts.bench.statistics import background
from agent_tts.errors import BadMessage
from agent_tts.serve.transports.sdp import MAX_LINES, read_offer
from tests.examples import examples
from tests.rtc_peer import RtcPeer
from tests.serve.transports.test_sdp import CHROMIUM
from tests.support import running_node
from tests.work import work

JUNK = [
    "",
    "a=",
    "a=:",
    "m=",
    "m=audio",
    "a=candidate:",
    "a=group:BUNDLE",
    "a=rtpmap:111",
    "a=fmtp:1 x",
    "\0",
    "a=ssrc:1",
]
NUMBERS = ["-1", "0", "65536", "4294967296", "9" * 5_000, "1e9", "٣", "NaN"]


@st.composite
def mutants(draw: st.DrawFn, original: str) -> str:
    """A real offer with a few random changes to its lines."""
    lines = original.splitlines()
    for _ in range(draw(st.integers(1, 6))):
        index = draw(st.integers(0, len(lines) - 1))
        lines[index : index + 1] = _accident(draw, lines, lines[index])
        if not lines:
            return ""
    return draw(st.sampled_from(["\r\n", "\n", "\r"])).join(lines)


def _accident(draw: st.DrawFn, lines: list[str], line: str) -> list[str]:
    cut = draw(st.integers(0, len(line)))
    match draw(st.integers(0, 6)):
        case 0:
            return []
        case 1:
            return [line] * draw(st.sampled_from([2, 3, 50, 600]))
        case 2:
            return [line[:cut]]
        case 3:
            return [line[:cut] + draw(st.text(max_size=20)) + line[cut:]]
        case 4:
            return [_swap_number(draw, line)]
        case 5:
            return [draw(st.sampled_from(JUNK))]
        case _:
            return [draw(st.sampled_from(lines))]


def _swap_number(draw: st.DrawFn, line: str) -> str:
    words = line.replace(":", ": ").split(" ")
    at = [index for index, word in enumerate(words) if word.isdecimal()]
    if at:
        words[draw(st.sampled_from(at))] = draw(st.sampled_from(NUMBERS))
    return " ".join(words).replace(": ", ":")


def read_quickly(text: str) -> None:
    """With work of a few lines and looks for each character: a hundred thousand take 50 ms at most."""
    assert work(lambda: read_or_refuse(text)) <= 10 * len(text) + 10_000


def read_or_refuse(text: str) -> None:
    with contextlib.suppress(BadMessage):
        assert read_offer(text).sdp.count("m=") == 2


@examples(500, suppress_health_check=[HealthCheck.too_slow])
@given(mutants(CHROMIUM))
def test_a_changed_offer_is_read_or_refused_quickly(text: str) -> None:
    read_quickly(text)


@examples(500)
@given(st.text(max_size=5_000) | st.text("amv=0123456789:/ \r\n", max_size=5_000))
def test_noise_is_refused(text: str) -> None:
    with pytest.raises(BadMessage):
        read_offer(text)
    read_quickly(text)


@pytest.mark.parametrize(
    "line", ["a=ssrc:1 cname:x", "a=rtpmap:1 a/1", "a=candidate:1 1 udp 1 1.1.1.1 1 typ host", "m=a 1 A a"]
)
def test_a_body_of_one_repeated_line_is_refused_quickly(line: str) -> None:
    text = CHROMIUM + (line + "\r\n") * MAX_LINES
    with pytest.raises(BadMessage):
        read_offer(text)
    read_quickly(text)


# ---------------------------------------------------------------- against a node


@contextlib.asynccontextmanager
async def watched_loop(most_s: float) -> AsyncIterator[None]:
    """The event loop is never busy for longer than `most_s` at a stretch, in CPU time: other programs do not count."""
    longest = 0.0

    async def probe() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            longest = max(longest, time.thread_time() - before)

    async with background(probe(), "probe"):
        yield
    assert longest < most_s, f"the event loop was busy for {longest:.3f} s"


def _examples(original: str, count: int) -> list[str]:
    found: list[str] = []

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(mutants(original))
    def draw(text: str) -> None:
        found.append(text.encode(errors="replace").decode())

    draw()
    return found


async def _status_of(client: httpx.AsyncClient, text: str) -> int:
    """Status of an offer. A peer that it opens is closed again."""
    reply = await client.post("/v1/rtc/offer", json={"sdp": text, "type": "offer"})
    if reply.status_code == 200:
        assert (await client.delete(f"/v1/rtc/{reply.json()['session_id']}")).status_code == 204
    return reply.status_code


@pytest.mark.node
@pytest.mark.alone
async def test_changed_offers_leave_no_peer_and_cause_no_delay(caplog: pytest.LogCaptureFixture) -> None:
    """Answered peers are closed, no task of aiortc fails, and other clients are served meanwhile."""
    peer = RtcPeer()
    original = await peer.offer()
    await peer.close()
    examples = _examples(original, 120)
    statuses = []
    async with running_node() as node, httpx.AsyncClient(base_url=node.url) as client:
        assert await _status_of(client, original) == 200
        gc.collect()  # objects of hypothesis are not the node's leaks
        async with watched_loop(0.1):
            for text in examples:
                statuses.append(await _status_of(client, text))
                assert not node.node.peers
                assert not node.node.sessions
    assert set(statuses) <= {200, 400, 413}
    assert statuses.count(400) > 40
    assert not [record for record in caplog.records if record.name.startswith(("asyncio", "aiortc", "aioice"))]
