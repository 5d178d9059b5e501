"""Speech is understood over every output of the node: Whisper's word error rate has a bound for each engine.

A text is six sentences: a word or two may be wrong within the bound. A sentence that is not there, or a path that harms
the sound, is over it.
"""

from __future__ import annotations

import asyncio
import functools
import io
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import av
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.client.moving import connect
from tests.node_process import RunningProcess, running_process
from tests.recogniser import hearing
from tests.rtc_peer import LOUD, RtcPeer, connected, rms
from tests.support import running_node
from tests.two_nodes import two_nodes_in_this_loop
from tests.wire import speak, wire

pytestmark = pytest.mark.node

# The engines, and the share of words that may be wrong.
BOUNDS = {"espeak": 0.06, "hibari": 0.04}

PARTS = (
    "Thanks for calling, how can I help you today? I'm sorry to hear that, let me see what I can do for you.",
    "Your prescription is ready, and you can pick it up until eight o'clock.",
    "You can return the shoes within thirty days, and shipping is free. No problem at all, take all the time you need.",
)
TEXT = " ".join(PARTS)
LOSS = 0.01  # of WebRTC's packets
CUT_MS = 5_000  # of the speech that is cancelled

Sound = tuple[NDArray[np.int16], int]  # int16[n], mono, and its rate in Hz


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProcess]:
    """A node in processes of its own: what hibari does in real time is part of what is heard."""
    with running_process(tmp_path_factory.mktemp("node"), "--engine", "hibari") as running:
        yield running


def check(samples: NDArray[np.int16] | bytes, rate: int = 24_000, engine: str = "hibari") -> None:
    """Assert that the text is understood."""
    samples = np.frombuffer(samples, "<i2") if isinstance(samples, bytes) else samples
    assert hearing().wer(TEXT, samples, rate) <= BOUNDS[engine]


def decoded(data: bytes) -> Sound:
    """The sound of an audio file."""
    with av.open(io.BytesIO(data), "r") as file:
        rate = file.streams.audio[0].rate
        resampler = av.AudioResampler("s16", "mono", rate)
        frames = [out for frame in file.decode(audio=0) for out in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate


async def test_a_text_whose_node_is_lost_goes_on_at_another() -> None:
    """It stands before those that start a node in a process, with which time would not jump."""
    async with two_nodes_in_this_loop(engine="espeak") as balanced:
        async with connect(balanced.url, moves=True) as connection:
            speech = await connection.open()
            speech.write(TEXT)
            speech.end()
            losing = asyncio.get_running_loop().call_later(CUT_MS / 1_000, balanced.lose)
            check(b"".join([pcm async for pcm in speech]), engine="espeak")
            assert losing.when() < asyncio.get_running_loop().time()


@pytest.mark.real_time
async def test_whole_text(node: RunningProcess) -> None:
    check(await speak(node.ws_url, TEXT, lead_ms=None))


@pytest.mark.real_time
async def test_words_of_a_language_model(node: RunningProcess) -> None:
    async with wire(node.ws_url) as peer:
        await peer.send("context.open", context_id="t", lead_ms=None)
        for word in TEXT.split():
            await peer.send("text.append", context_id="t", text=f"{word} ")
            await asyncio.sleep(0.02)
        await peer.send("context.end", context_id="t")
        await peer.until("context.done")
        check(peer.pcm("t"))


@pytest.mark.real_time
@pytest.mark.parametrize("format_", ["mp3", pytest.param("opus", marks=pytest.mark.slow)])
async def test_files(node: RunningProcess, format_: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        body = {"model": "tts-1", "input": TEXT, "voice": "alloy", "response_format": format_}
        response = await client.post(node.url + "/v1/audio/speech", json=body)
        assert response.status_code == 200
        check(*decoded(response.content))


@pytest.mark.real_time
@pytest.mark.parametrize(("encoding", "rate", "codec"), [("mulaw", 8_000, "pcm_mulaw"), ("opus", 48_000, "libopus")])
async def test_packets(node: RunningProcess, encoding: str, rate: int, codec: str) -> None:
    """A telephone's sound; and one Opus packet a message."""
    async with wire(node.ws_url) as peer:
        await peer.say("t", TEXT, lead_ms=None, output={"encoding": encoding, "sample_rate": rate})
        await peer.until("context.done")
        decoder: Any = av.CodecContext.create(codec, "r")
        decoder.sample_rate, decoder.layout = rate, "mono"
        packets = [av.Packet(payload) for _, _, payload in peer.frames[peer.numbers["t"]] if payload]
        resampler = av.AudioResampler("s16", "mono", rate)
        frames = [out for packet in packets for frame in decoder.decode(packet) for out in resampler.resample(frame)]
        check(np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate)


@pytest.mark.alone
@pytest.mark.real_time
async def test_webrtc_that_loses_packets(node: RunningProcess) -> None:
    """All parts at once, each to a peer: they are spoken in real time."""

    async def heard(part: str) -> NDArray[np.int16]:
        async with connected(node.url) as peer:
            came = lose(peer, random.Random(part))
            peer.say("t", part)
            done = await peer.message("context.done", context_id="t")
            await peer.wait(lambda: heard_ms(peer) > done["audio_ms"])
            return placed(came)

    check(np.concatenate(await asyncio.gather(*map(heard, PARTS))), 48_000)


def lose(peer: RtcPeer, draw: random.Random) -> list[tuple[int, bytes]]:
    """Let a share of the packets that come be lost, as a network would; the time and payload of those that are not."""
    receiver = peer.connection.getReceivers()[0]
    handle, came = receiver._handle_rtp_packet, list[tuple[int, bytes]]()

    async def lossy(packet: Any, arrival_time_ms: int) -> None:
        if draw.random() >= LOSS:
            came.append((packet.timestamp, packet.payload))
            await handle(packet, arrival_time_ms=arrival_time_ms)

    receiver._handle_rtp_packet = lossy
    return came


def placed(packets: Sequence[tuple[int, bytes]]) -> NDArray[np.int16]:
    """The sound of Opus packets at 48 kHz, each at its time: what is lost is silent.

    aiortc's own buffer leaves out up to ten more packets around one that is lost, and moves what follows.
    """
    decoder, begin = av.CodecContext.create("libopus", "r"), packets[0][0]
    found = np.zeros(packets[-1][0] - begin + 960, np.int16)
    for at, payload in packets:
        for frame in decoder.decode(av.Packet(payload)):
            found[at - begin :][:960] = frame.to_ndarray().reshape(-1, 2)[:, 0]
    return found


def heard_ms(peer: RtcPeer) -> float:
    """Since sound began, ms."""
    begun = next((pts for _, pts, samples in peer.frames if rms(samples) > LOUD), None)
    return 0.0 if begun is None else (peer.frames[-1][1] - begun) / 48


@pytest.mark.real_time
async def test_what_was_heard_before_a_cancel_and_the_rest_are_the_text(node: RunningProcess) -> None:
    """No word is said twice, and none is left out."""
    async with connect(node.url, lead_ms=None) as connection:
        first = await connection.open()
        first.write(TEXT)
        first.end()
        sound = b"".join([pcm async for pcm in first])
        cancelled = await first.cancel(played_ms=next(word.end_ms for word in first.words if word.end_ms > CUT_MS))
        assert cancelled.heard_text + cancelled.unheard_text == TEXT
        rest = await connection.open()
        rest.write(cancelled.unheard_text)
        rest.end()
        check(sound[: cancelled.played_ms * 48] + b"".join([pcm async for pcm in rest]))


# ---------------------------------------------------------------- that these tests can fail


@functools.cache
def part() -> NDArray[np.int16]:
    async def main() -> bytes:
        async with running_node(engine="espeak") as running:
            return await speak(running.ws_url, PARTS[0], lead_ms=None)

    return np.frombuffer(asyncio.run(main()), "<i2")


def frames_of(sound: NDArray[np.int16]) -> NDArray[np.int16]:
    """int16[n, 1920]: its frames of 80 ms."""
    return sound[: len(sound) // 1_920 * 1_920].reshape(-1, 1_920)


BREAKS: dict[str, Callable[[NDArray[np.int16]], NDArray[np.int16]]] = {
    "a frame of ten is lost": lambda sound: np.delete(frames_of(sound), np.s_[::10], axis=0).ravel(),
    "frames change places": lambda sound: (
        frames_of(sound)[: len(sound) // 3_840 * 2].reshape(-1, 2, 1_920)[:, ::-1].ravel()
    ),
    "a sentence is missing": lambda sound: sound[: len(sound) // 2],
    "it is said twice": lambda sound: np.concatenate((sound, sound[len(sound) // 2 :])),
    "half of the samples": lambda sound: sound[::2],
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BREAKS)
def test_broken_sound_is_over_the_bound(what: str) -> None:
    assert hearing().wer(PARTS[0], BREAKS[what](part()), 24_000) > 2 * max(BOUNDS.values())
