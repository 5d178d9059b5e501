from __future__ import annotations

from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.speech.audio.encoding import OpusEncoder
from agent_tts.speech.audio.track import DTX, DTX_AFTER, DTX_EVERY, LEAD_MS, SILENCE, SpeechTrack
from tests.support import dominant_hz


def tone(hz: float, ms: int) -> bytes:
    """pcm_s16le, 24 kHz."""
    t = np.arange(24 * ms) / 24_000
    return (0.4 * 32_767 * np.sin(2 * np.pi * hz * t)).astype("<i2").tobytes()


def encoded(pcm: bytes) -> list[bytes]:
    return [packet for packet, _ in OpusEncoder().encode(pcm)]


def decoded(packets: list[bytes]) -> NDArray[np.float64]:
    """The received audio, mono at 48 kHz."""
    decoder: Any = av.CodecContext.create("libopus", "r")
    decoder.format, decoder.layout, decoder.sample_rate = "s16", "mono", 48_000
    frames = [frame.to_ndarray().reshape(-1) for packet in packets for frame in decoder.decode(av.Packet(packet))]
    return np.concatenate(frames).astype(np.float64)


def loudness(sound: NDArray[np.float64], start_ms: float, end_ms: float) -> float:
    piece = sound[int(start_ms * 48) : int(end_ms * 48)]
    return float(np.sqrt(np.mean(piece**2)))


class Listener:
    """A track, and all of its packets."""

    def __init__(self) -> None:
        self.woken = 0
        self.track = SpeechTrack(self._wake)
        self.packets: list[bytes] = []

    def _wake(self) -> None:
        self.woken += 1

    def say(self, context_no: int, pcm: bytes) -> None:
        """All audio of a context, or the rest of it."""
        self.track.write(context_no, pcm)
        self.track.end(context_no)

    def hear(self, count: int) -> list[bytes]:
        """Receive the next packets."""
        packets = [packet for _ in range(count) if (packet := self.track.next_packet()) is not None]
        self.packets += packets
        return packets


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_silence_is_sent_without_end() -> None:
    assert not decoded(Listener().hear(100)).any()


def test_with_dtx_silence_is_a_packet_each_400_ms(listener: Listener) -> None:
    """After some packets of silence; speech begins at once, whenever it comes, and is the same."""
    listener.track.dtx = True
    for wait in (1, DTX_AFTER + 1, DTX_AFTER + 3 * DTX_EVERY):
        listener.say(wait, tone(440, 200))
        assert listener.hear(10) == encoded(tone(440, 200))
        listener.hear(1)  # the encoder's look-ahead
        slots = [listener.track.next_packet() for _ in range(wait)]
        assert slots[:DTX_AFTER] == [SILENCE] * min(wait, DTX_AFTER)
        rest = slots[DTX_AFTER:]
        assert rest == [DTX if number % DTX_EVERY == 0 else None for number in range(len(rest))]


def test_a_context_does_not_depend_on_earlier_ones(listener: Listener) -> None:
    """Bit for bit, whatever was spoken and cut before it."""
    listener.track.write(1, tone(440, 1_000))
    listener.hear(20)
    listener.track.clear(1)
    listener.hear(5)
    listener.say(2, tone(660, 1_000))
    listener.hear(60)
    after = decoded(listener.packets)[25 * 960 :]
    alone = decoded([*encoded(tone(660, 1_000)), SILENCE])
    # The decoder's cross-fade from silence takes 10 ms.
    assert np.array_equal(after[480 : 50 * 960], alone[480 : 50 * 960])


def test_contexts_play_completely_one_after_the_other(listener: Listener) -> None:
    listener.track.write(7, tone(440, 300))
    listener.track.write(3, tone(880, 400))
    listener.track.write(7, tone(440, 300))
    listener.track.end(3)
    listener.track.end(7)
    sound = decoded(listener.hear(60))
    assert dominant_hz(sound[2_400:26_400].astype(np.int16), 48_000) == pytest.approx(440, abs=5)
    assert dominant_hz(sound[31_200:48_000].astype(np.int16), 48_000) == pytest.approx(880, abs=5)
    loud = np.abs(sound).reshape(-1, 48).max(axis=1) > 1_000
    assert loud.sum() == pytest.approx(1_000, abs=25)


@pytest.mark.parametrize("ms", [100, 105])
def test_the_last_milliseconds_are_sent(ms: int, listener: Listener) -> None:
    """The encoder's look-ahead at the end, and a piece that fills no packet."""
    listener.say(1, tone(440, ms))
    sound = decoded(listener.hear(12))
    whole = decoded(encoded(tone(440, ms) + bytes(48 * (140 - ms))))
    heard_until = int((ms + 6.5) * 48)
    assert np.array_equal(sound[:heard_until], whole[:heard_until])
    assert loudness(sound, ms + 30, 240) < 10


def test_clear_is_followed_by_silence_at_once(listener: Listener) -> None:
    listener.track.write(1, tone(440, 1_000))
    listener.hear(10)
    assert listener.track.played_ms(1) == 200
    listener.track.clear(1)
    assert listener.hear(20) == [SILENCE] * 20
    sound = decoded(listener.packets)
    assert loudness(sound, 150, 200) > 3_000
    assert loudness(sound, 210, 600) < 1


def test_clear_makes_no_click() -> None:
    """The listener's decoder fades from speech to the packets of silence. A cut in the samples is heard as a click."""

    def roughness(sound: NDArray[np.float64]) -> float:
        return float(np.abs(np.diff(sound, 3)).max())

    for hz in (443, 447, 452):  # cut anywhere in a period
        listener = Listener()
        listener.track.write(1, tone(hz, 1_000))
        listener.hear(10)
        listener.track.clear(1)
        listener.hear(10)
        sound = decoded(listener.packets)
        speech = sound[48 * 100 : 48 * 195]
        assert roughness(sound[48 * 100 :]) < 3 * roughness(speech)
        assert roughness(np.append(speech, np.zeros(9))) > 10 * roughness(speech)


def test_clear_keeps_other_contexts(listener: Listener) -> None:
    listener.track.write(1, tone(440, 200))
    listener.track.write(2, tone(660, 200))
    listener.say(3, tone(880, 200))
    listener.hear(5)
    listener.track.clear(2)
    listener.track.clear(1)
    assert listener.hear(10) == encoded(tone(880, 200))
    assert listener.track.played_ms(3) == 200


def test_a_context_that_waits_for_text_keeps_its_turn_and_its_encoder(listener: Listener) -> None:
    """A pause inside a context is silence from its own encoder; the next context waits for its end."""
    listener.track.write(1, tone(440, 400))
    listener.say(2, tone(880, 400))
    listener.hear(40)
    assert listener.track.played_ms(1) == 400
    listener.say(1, tone(440, 400))
    listener.hear(45)
    assert listener.packets[:60] == encoded(tone(440, 400) + bytes(48 * 400) + tone(440, 400))
    assert listener.packets[61:81] == encoded(tone(880, 400))


def test_played_ms_never_exceeds_the_audio(listener: Listener) -> None:
    listener.track.write(1, tone(440, 50))
    assert listener.track.played_ms(1) is None
    played = []
    for _ in range(2):
        listener.hear(1)
        played.append(listener.track.played_ms(1))
    listener.track.end(1)
    listener.hear(1)
    played.append(listener.track.played_ms(1))
    assert played == [20, 40, 50]
    listener.hear(1)
    assert listener.track.played_ms(1) is None
    assert listener.track.played_ms(99) is None


def test_it_wants_audio_up_to_its_lead_and_signals_when_it_wants_more(listener: Listener) -> None:
    assert listener.track.wants(1)
    while listener.track.wants(1):
        listener.track.write(1, tone(440, 80))
    waiting = LEAD_MS // 20
    assert listener.track.is_playing(1)
    listener.hear(1)
    assert listener.track.wants(1)
    assert listener.woken == 1
    listener.hear(waiting - 2)
    assert listener.woken == 1
    assert listener.track.is_playing(1)
    listener.hear(1)
    assert listener.woken == 2
    assert not listener.track.is_playing(1)


@pytest.mark.parametrize("act", [SpeechTrack.clear, SpeechTrack.end])
def test_clear_and_end_are_idempotent(act: Callable[[SpeechTrack, int], None], listener: Listener) -> None:
    act(listener.track, 1)
    listener.track.write(1, tone(440, 20))
    act(listener.track, 1)
    act(listener.track, 1)
    listener.hear(5)
    act(listener.track, 1)
    assert listener.hear(1) == [SILENCE]
