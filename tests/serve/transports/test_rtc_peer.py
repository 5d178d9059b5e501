from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator

import aioice.ice
import aiortc.rtcsctptransport
import httpx
import numpy as np
import pytest

from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.routes.rtc import close_all
from agent_tts.serve.session import SLICE_CHARS
from agent_tts.serve.transports import rtc_peer as peers
from agent_tts.speech.utterance import Utterance
from tests.rtc_peer import RATE, RtcPeer, connected, rms
from tests.support import RunningNode, dominant_hz, recorded, running_node, until
from tests.virtual_time import free_computing

pytestmark = pytest.mark.node

LONG = "a long story of many words that goes on and on " * 20


@pytest.fixture(autouse=True)
def no_time_to_compute() -> Iterator[None]:
    """Times are those of the protocol: what a busy machine needs for encoders and decoders does not count."""
    with free_computing():
        yield


def hz(sound: list[tuple[float, np.typing.NDArray[np.int16]]]) -> float:
    """The loudest frequency of the samples."""
    return dominant_hz(np.concatenate([samples for _, samples in sound]), RATE)


async def post_offer(node: RunningNode, headers: dict[str, str] | None = None, query: str = "") -> httpx.Response:
    """The answer to a valid offer of a peer that never connects."""
    async with RtcPeer() as peer, node.http(headers=headers) as client:
        offer = {"sdp": await peer.offer(), "type": "offer", "of a later browser": 1}
        return await client.post(f"/v1/rtc/offer{query}", json=offer)


# ---------------------------------------------------------------- speech


async def test_text_on_the_channel_becomes_sound_on_the_track(peer: RtcPeer) -> None:
    created = await peer.message("session.created")
    assert created["session_id"] == peer.session_id
    peer.say("t1", "hello there, how are you today", voice="tone-440")
    done = await peer.message("context.done", context_id="t1")
    await peer.wait(lambda: rms(peer.frames[-1][2]) < 1)
    assert done["reason"] == "end"
    assert hz(peer.loud()) == pytest.approx(440, abs=5)
    assert 20 * len(peer.loud()) == pytest.approx(done["audio_ms"], abs=40)
    order = [message["type"] for _, message in peer.messages if message.get("context_id") == "t1"]
    assert list(dict.fromkeys(order)) == ["context.started", "words", "context.done"]
    assert order[-1] == "context.done"


async def test_a_long_text_is_read_in_slices(peer: RtcPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them others have their turn. Guards the ends of slices in `RtcPeer._send_some`."""
    entered = recorded(monkeypatch, Flow, "__aenter__")
    writes = recorded(monkeypatch, Utterance, "write", lambda _, text: (len(text), len(entered)))
    monkeypatch.setattr(Flow, "has_time", lambda self: False)
    peer.send("text.append", context_id="t1", text="word " * 400)
    peer.send("context.cancel", context_id="t1")
    await peer.message("context.cancelled")
    assert [length for length, _ in writes] == [SLICE_CHARS] * 7 + [2_000 - 7 * SLICE_CHARS]
    assert len({turn for _, turn in writes[1:]}) == 7


@pytest.mark.alone
@pytest.mark.real_time
async def test_done_comes_when_all_has_been_played(peer: RtcPeer) -> None:
    peer.say("t1", "hello there, how are you today", voice="tone-440", lead_ms=None)
    done = await peer.message("context.done", context_id="t1")
    first, _ = peer.loud()[0]
    # An aiortc peer hears 80 ms late because of its jitter buffer.
    assert peer.arrival("context.done") - first > done["audio_ms"] / 1_000 - 0.2


async def test_contexts_are_heard_one_after_the_other(peer: RtcPeer) -> None:
    """The second is sent while the first speaks; it waits, complete, and contains nothing of the first."""
    peer.say("t1", "the first one speaks", voice="tone-440")
    peer.say("t2", "and then the second one", voice="tone-880")
    first = await peer.message("context.done", context_id="t1")
    second = await peer.message("context.done", context_id="t2")
    await peer.wait(lambda: rms(peer.frames[-1][2]) < 1)
    sound = peer.loud()
    count = first["audio_ms"] // 20
    assert hz(sound[: count - 3]) == pytest.approx(440, abs=5)
    assert hz(sound[count + 3 :]) == pytest.approx(880, abs=5)
    assert 20 * len(sound) == pytest.approx(first["audio_ms"] + second["audio_ms"], abs=60)


async def test_a_waiting_context_does_not_stop_the_one_before_it(peer: RtcPeer) -> None:
    """t2 has all its audio before t1 gets its last words; t1 goes on and is heard first."""
    peer.send("context.open", context_id="t1", voice="tone-440")
    peer.send("text.append", context_id="t1", text="one two three four ")
    peer.send("context.flush", context_id="t1", flush_id="f1")
    await peer.wait(peer.loud)
    peer.say("t2", LONG[:40], voice="tone-880")
    await peer.message("context.started", context_id="t2")
    await peer.wait(lambda: rms(peer.frames[-1][2]) < 100)
    peer.send("text.append", context_id="t1", text="five six seven eight")
    peer.send("context.end", context_id="t1")
    await peer.message("context.done", context_id="t1")
    await peer.message("context.done", context_id="t2")
    order = [message["context_id"] for _, message in peer.messages if message["type"] == "context.done"]
    assert order == ["t1", "t2"]
    assert hz(peer.loud()[-40:]) == pytest.approx(880, abs=5)


@pytest.mark.alone
@pytest.mark.real_time
async def test_cancel_is_silent_within_150_ms(node: RunningNode, peer: RtcPeer) -> None:
    peer.say("t1", LONG, voice="tone-440")
    await peer.wait(lambda: len(peer.loud()) > 40)
    cancelled_at = time.monotonic()
    peer.send("context.cancel", context_id="t1")
    cancelled = await peer.message("context.cancelled")
    await peer.message("context.done", reason="cancelled")
    await asyncio.sleep(0.3)
    last, _ = peer.loud()[-1]
    assert last - cancelled_at < 0.15
    assert cancelled["played_ms"] == pytest.approx(20 * len(peer.loud()), abs=60)
    # Played audio was credited; the other credit is lost.
    assert cancelled["generated_ms"] - cancelled["played_ms"] < 1_500
    assert cancelled["heard_text"] + cancelled["unheard_text"] == LONG
    assert node.node.service.speaking == 0


async def test_a_fully_generated_context_can_be_cancelled(node: RunningNode, peer: RtcPeer) -> None:
    """The engine ends long before playback does: the context is open until then."""
    peer.say("t1", LONG[:60], voice="tone-440", lead_ms=None)
    await peer.wait(peer.loud)
    await until(lambda: node.node.service.speaking == 0)
    peer.send("context.cancel", context_id="t1")
    cancelled = await peer.message("context.cancelled")
    done = await peer.message("context.done")
    await asyncio.sleep(0.3)
    assert done["reason"] == "cancelled"
    assert cancelled["played_ms"] == pytest.approx(20 * len(peer.loud()), abs=60)
    assert 20 * len(peer.loud()) < cancelled["generated_ms"] - 500


async def test_generation_does_not_run_far_ahead_of_playback(peer: RtcPeer) -> None:
    """Unpaced speech runs ahead by the engine's window of 4 s, the track's lead and a piece of six frames."""
    peer.say("t1", LONG, voice="tone-440", lead_ms=None)
    await peer.wait(lambda: len(peer.loud()) > 25)
    peer.send("context.cancel", context_id="t1")
    cancelled = await peer.message("context.cancelled")
    assert 3_500 < cancelled["generated_ms"] - cancelled["played_ms"] < 4_900


async def test_sound_after_a_cancel_is_clean(peer: RtcPeer) -> None:
    peer.say("t1", LONG, voice="tone-440")
    await peer.wait(lambda: len(peer.loud()) > 10)
    peer.send("context.cancel", context_id="*")
    peer.say("t2", "now this", voice="tone-880")
    await peer.message("context.cancelled")
    at = time.monotonic() + 0.15
    await peer.message("context.done", context_id="t2")
    assert hz([piece for piece in peer.loud() if piece[0] > at]) == pytest.approx(880, abs=10)


async def test_20_percent_packet_loss_changes_no_duration(peer: RtcPeer) -> None:
    """F7: received packets keep their place in time, and carry the lost packet before them (FEC)."""
    heard: list[tuple[int, bytes]] = []
    receiver = peer.connection.getReceivers()[0]
    handle, lost = receiver._handle_rtp_packet, [False, False, True, False, False]

    async def lossy(packet: object, arrival_time_ms: int) -> None:
        lost.append(lost.pop(0))
        if not lost[-1]:
            heard.append((packet.timestamp, packet.payload))  # pyrefly: ignore[missing-attribute]
            await handle(packet, arrival_time_ms=arrival_time_ms)  # pyrefly: ignore[bad-argument-type]

    receiver._handle_rtp_packet = lossy
    peer.say("t1", LONG[:80], voice="tone-440")
    done = await peer.message("context.done")
    speech = [(timestamp, payload) for timestamp, payload in heard if len(payload) > 20]
    duration_ms = (speech[-1][0] - speech[0][0]) / 48 + 20
    assert duration_ms == pytest.approx(done["audio_ms"], rel=0.01, abs=40)
    has_fec = [payload[1] >> 6 & 1 for _, payload in speech[5:-2]]  # as libopus' opus_packet_has_lbrr
    assert sum(has_fec) > 0.3 * len(has_fec), "the encoder has no FEC"


async def test_lateness_of_packets_is_measured(node: RunningNode, peer: RtcPeer) -> None:
    await peer.wait(lambda: len(peer.frames) > 20)
    registry = node.node.metrics.registry
    assert (registry.get_sample_value("agent_tts_rtc_lateness_seconds_count") or 0) >= 20


async def test_a_too_long_cancel_message_comes_without_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 000 characters outside the BMP are 240 kB of JSON; some peers take 64 KiB."""
    monkeypatch.setattr(aiortc.rtcsctptransport, "LOCAL_MAX_MESSAGE_SIZE", 65_536)
    async with running_node() as node, connected(node.url) as peer:
        for _ in range(5):
            peer.send("text.append", context_id="t1", text="𝄞" * 3_900)
        peer.send("context.flush", context_id="t1")
        peer.send("context.cancel", context_id="t1")
        cancelled = await peer.message("context.cancelled")
        assert cancelled["heard_text"] is None
        assert cancelled["unheard_text"] is None


# ---------------------------------------------------------------- opening and closing


async def test_every_offer_is_a_separate_session(node: RunningNode, peer: RtcPeer, other: RtcPeer) -> None:
    assert peer.session_id != other.session_id
    assert node.node.peers.keys() == {peer.session_id, other.session_id}
    peer.say("t1", "hello", voice="tone-440")
    other.say("t1", "hello", voice="tone-880")
    await asyncio.gather(peer.message("context.done"), other.message("context.done"))
    assert hz(peer.loud()) == pytest.approx(440, abs=10)
    assert hz(other.loud()) == pytest.approx(880, abs=10)


async def test_delete_closes_the_peer_and_frees_its_slot(node: RunningNode, peer: RtcPeer) -> None:
    peer.say("t1", LONG)
    await peer.wait(peer.loud)
    async with node.http() as client:
        assert (await client.delete(f"/v1/rtc/{peer.session_id}")).status_code == 204
        assert not node.node.peers
        assert not node.node.sessions
        await until(lambda: node.node.service.speaking == 0, 0.1)
        assert (await client.delete(f"/v1/rtc/{peer.session_id}")).status_code == 404
    await peer.wait(lambda: peer.connection.connectionState == "closed")


async def test_a_client_that_closes_is_forgotten_at_once(node: RunningNode, peer: RtcPeer) -> None:
    peer.say("t1", LONG)
    await peer.wait(peer.loud)
    await peer.close()
    await until(lambda: not node.node.peers and node.node.service.speaking == 0, 0.5)


async def test_session_close_closes_the_peer_after_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of sixteen contexts do not fit into one flight of SCTP."""
    monkeypatch.setattr(peers, "LINGER_S", 10.0)  # a busy machine needs longer than the 1 s of a node
    async with running_node() as node, connected(node.url) as peer:
        for index in range(16):
            peer.say(f"t{index}", LONG * 4)
        await peer.message("context.started", context_id="t15")
        peer.send("session.close")
        await peer.wait(lambda: [message["type"] for _, message in peer.messages].count("context.done") == 16)
        await until(lambda: not node.node.peers, 2.0)


async def test_webrtc_can_be_turned_off() -> None:
    async with running_node(limits={"rtc_peers": 0}) as node:
        assert (await post_offer(node)).status_code == 404


async def test_sessions_per_key_count_and_are_given_back() -> None:
    keys = {"auth": {"api_keys": ["one", "two"]}, "limits": {"sessions_per_key": 1}}
    one = {"Authorization": "Bearer one"}
    async with running_node(**keys) as node:
        async with connected(node.url, one) as peer:
            assert (await post_offer(node, one)).status_code == 503
            async with node.http(headers=one) as client:
                assert (await client.delete(f"/v1/rtc/{peer.session_id}")).status_code == 204
        async with connected(node.url, one):
            pass


INVALID = (
    b"",
    b"[]",
    b"{",
    b'{"type": "offer"}',
    b'{"type": "offer", "sdp": 1}',
    b'{"type": "answer", "sdp": "v=0"}',
    b'{"type": "offer", "sdp": "v=0"}',
    b'{"type": "offer", "sdp": "\\ud800"}',
    b"\xff" * 10,
)


async def test_an_invalid_offer_is_400(node: RunningNode) -> None:
    async with node.http() as client:
        for body in INVALID:
            reply = await client.post("/v1/rtc/offer", content=body, headers={"Content-Type": "application/json"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_message"), body
            assert not node.node.peers


async def test_a_too_long_body_is_413_before_it_is_read(node: RunningNode) -> None:
    async with node.http() as client:
        body = json.dumps({"type": "offer", "sdp": "v=0\r\n" + "a=x\r\n" * 200_000})
        reply = await client.post("/v1/rtc/offer", content=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "text_too_long")


async def test_a_silent_stun_server_delays_the_answer_only_briefly() -> None:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as mute:
        mute.bind(("127.0.0.1", 0))
        servers = [{"urls": [f"stun:127.0.0.1:{mute.getsockname()[1]}"]}]
        async with running_node(ice_servers=servers) as node:
            start = time.monotonic()
            async with connected(node.url) as peer:
                assert time.monotonic() - start < 2.5
                peer.say("t1", "hello")
                await peer.message("context.done")


async def test_clients_with_a_key_get_the_ice_servers() -> None:
    servers = [
        {"urls": ["stun:stun.example.org"]},
        {"urls": ["turn:turn.example.org"], "username": "me", "credential": "secret"},
    ]
    async with running_node(auth={"api_keys": ["one"]}, ice_servers=servers) as node:
        async with node.http() as client:
            assert (await client.get("/v1/rtc/ice")).status_code == 401
            reply = await client.get("/v1/rtc/ice", headers={"X-API-Key": "one"})
        assert reply.json() == {"iceServers": servers}


async def test_without_any_network_it_speaks_over_loopback(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RtcPeer() as peer:
        offer = await peer.offer()
        monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda **_: [])
        async with node.http() as client:
            reply = (await client.post("/v1/rtc/offer", json={"sdp": offer, "type": "offer"})).json()
        assert " 127.0.0.1 " in reply["sdp"]
        await peer.accept(reply)
        await peer.message("session.created")


# ---------------------------------------------------------------- limits and end


async def test_a_peer_that_never_connects_is_given_up() -> None:
    async with running_node(timeouts={"handshake_s": 0.3}) as node:
        assert (await post_offer(node)).status_code == 200
        assert len(node.node.peers) == 1
        await until(lambda: not node.node.peers, 3.0)


async def test_unknown_data_channels_are_closed_and_too_many_end_the_peer(node: RunningNode, peer: RtcPeer) -> None:
    told: list[str] = []
    stray = peer.connection.createDataChannel("agent_tts.v2")
    stray.on("message", told.append)
    await until(lambda: stray.readyState == "closed")
    (error,) = map(json.loads, told)
    assert (error["code"], error["fatal"]) == ("unsupported_protocol", True)
    assert "agent_tts.v1" in error["message"]
    assert node.node.peers
    for index in range(peers.MAX_STRAY_CHANNELS):
        peer.connection.createDataChannel(f"stray {index}")
    await until(lambda: not node.node.peers)


async def test_a_too_long_message_ends_the_peer() -> None:
    async with running_node(limits={"message_bytes": 8_192}) as node, connected(node.url) as peer:
        peer.channel.send("x" * 8_193)
        await until(lambda: not node.node.peers)


class FullChannel:
    """A data channel whose client takes `bytes_per_s` of what waits for it."""

    readyState, bufferedAmountLowThreshold = "open", 0

    def __init__(self, bytes_per_s: float = 0.0) -> None:
        self._begun, self._rate = time.monotonic(), bytes_per_s

    @property
    def bufferedAmount(self) -> int:
        return 2 * peers.MAX_BUFFERED - round(self._rate * (time.monotonic() - self._begun))


def slow_consumers(node: RunningNode) -> float | None:
    return node.node.metrics.registry.get_sample_value("agent_tts_refused_total", {"code": "slow_consumer"})


async def test_a_client_that_reads_no_messages_is_dropped_and_counted_once(node: RunningNode) -> None:
    """Without the check in `_on_message` each later message would count, too."""
    async with connected(node.url) as client:
        await client.message("session.created")
        (peer,) = node.node.peers.values()
        assert isinstance(peer, peers.RtcPeer)
        peer._peer.channel = FullChannel()  # pyrefly: ignore[bad-assignment]
        for number in range(1_100):
            peer._on_message(json.dumps({"type": "ping", "t": number}))
        await until(lambda: not node.node.peers)
        assert slow_consumers(node) == 1


async def test_a_client_that_reads_some_messages_stays() -> None:
    """Guards the look in `_close_reason`; one that then reads none is dropped in time."""
    async with running_node(timeouts={"write_s": 1.0}) as node, connected(node.url) as client:
        await client.message("session.created")
        (peer,) = node.node.peers.values()
        assert isinstance(peer, peers.RtcPeer)
        peer._peer.channel = FullChannel(bytes_per_s=10)  # pyrefly: ignore[bad-assignment]
        client.channel.send(json.dumps({"type": "session.update", "session": {}}))
        await asyncio.sleep(3.5)
        assert node.node.peers
        peer._peer.channel = FullChannel()  # pyrefly: ignore[bad-assignment]
        await until(lambda: not node.node.peers, 1.0 + 3 * peers.CHECK_S)
        assert slow_consumers(node) == 1


async def test_bad_messages_are_answered(node: RunningNode, peer: RtcPeer) -> None:
    for message in ("{", b"\x00binary", "[]", '{"type":"nothing"}'):
        peer.channel.send(message)
    await peer.wait(lambda: [m["type"] for _, m in peer.messages].count("error") == 4)
    assert node.node.peers


async def test_the_end_of_the_node_closes_every_peer(node: RunningNode, peer: RtcPeer, other: RtcPeer) -> None:
    peer.say("t1", LONG)
    await peer.wait(peer.loud)
    await close_all(node.node)
    assert not node.node.peers
    await other.wait(lambda: other.connection.connectionState == "closed")


async def test_a_draining_node_plays_to_the_end(node: RunningNode, peer: RtcPeer) -> None:
    """The engine ended long before; playback goes to the last word, and new peers are refused."""
    peer.say("t1", LONG[:60], voice="tone-440", lead_ms=None)
    await peer.wait(peer.loud)
    node.node.service.draining = True
    for session in list(node.node.sessions):
        session.drain()
    assert (await post_offer(node)).status_code == 503
    await close_all(node.node)
    await peer.message("session.draining")
    done = await peer.message("context.done")
    assert done["reason"] == "end"
    assert 20 * len(peer.loud()) == pytest.approx(done["audio_ms"], abs=140)
