"""espeak's speech is intelligible: a recogniser distinguishes ten sentences over every output of the node."""

from __future__ import annotations

import asyncio
import io

import av
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.recogniser import SENTENCES, recognise
from tests.rtc_peer import LOUD, RtcPeer, connected, rms
from tests.support import running_node
from tests.wire import speak, wire

pytestmark = pytest.mark.node

# The espeak voice that this recogniser, trained on human speech, recognises best.
VOICE = "en-us+f2"


def decoded(data: bytes) -> tuple[NDArray[np.int16], int]:
    """An audio file as int16[n], mono, and its rate in Hz."""
    with av.open(io.BytesIO(data), "r") as file:
        rate = file.streams.audio[0].rate
        resampler = av.AudioResampler("s16", "mono", rate)
        frames = [out for frame in file.decode(audio=0) for out in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate


async def test_over_the_websocket() -> None:
    async with running_node(engine="espeak") as running:
        for sentence in SENTENCES:
            pcm = await speak(running.ws_url, sentence, voice=VOICE, lead_ms=None)
            assert recognise(pcm) == sentence


@pytest.mark.parametrize("format_", ["mp3", "wav"])
async def test_over_http(format_: str) -> None:
    async with running_node(engine="espeak") as running, httpx.AsyncClient(trust_env=False) as client:
        for sentence in SENTENCES:
            body = {"model": "tts-1", "input": sentence, "voice": VOICE, "response_format": format_}
            response = await client.post(running.url + "/v1/audio/speech", json=body)
            assert response.status_code == 200
            assert recognise(*decoded(response.content)) == sentence


async def test_opus_over_webrtc() -> None:
    """All sentences at once, each to a peer: they are spoken in real time."""
    async with running_node(engine="espeak") as running:

        async def heard(sentence: str) -> str:
            async with connected(running.url) as peer:
                peer.say("t", sentence, voice=VOICE)
                await peer.message("context.done", context_id="t")
                await peer.wait(lambda: silent_at_the_end(peer))
                return recognise(np.concatenate([samples for _, _, samples in peer.frames]), 48_000)

        assert await asyncio.gather(*map(heard, SENTENCES)) == list(SENTENCES)


def silent_at_the_end(peer: RtcPeer) -> bool:
    """Whether the sound ends with 200 ms of silence."""
    tail = [samples for _, _, samples in peer.frames[-10:]]
    return len(tail) == 10 and all(rms(samples) < LOUD for samples in tail)


async def test_opus_over_the_websocket() -> None:
    """One Opus packet a message, decoded by libopus."""
    async with running_node(engine="espeak") as running, wire(running.ws_url) as peer:
        for number, sentence in enumerate(SENTENCES):
            output = {"encoding": "opus", "sample_rate": 48_000}
            await peer.say(f"t{number}", sentence, voice=VOICE, lead_ms=None, output=output)
            await peer.until("context.done")
            decoder = av.CodecContext.create("libopus", "r")
            packets = [payload for _, _, payload in peer.frames[peer.numbers[f"t{number}"]]]
            frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet))]
            heard = np.concatenate([frame.to_ndarray().reshape(-1, 2)[:, 0] for frame in frames])
            assert recognise(heard.astype(np.int16), 48_000) == sentence


async def test_noise_is_not_recognised_as_a_sentence() -> None:
    """Proves that the tests above can fail: noise matches at most one sentence."""
    noise = np.random.default_rng(1).integers(-3_000, 3_000, 48_000).astype(np.int16)
    assert [recognise(noise) == sentence for sentence in SENTENCES].count(True) <= 1
