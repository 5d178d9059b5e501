"""Packets as a real peer receives them, and what aiortc reports of them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from aiortc.rtp import RTCP_RTPFB_NACK, RtcpRtpfbPacket, RtcpSrPacket, RtpPacket

from agent_tts.speech.audio.packet_clock import PACKET_TICKS
from agent_tts.speech.audio.track import DTX_EVERY, SILENCE, SpeechTrack
from tests.rtc_peer import RtcPeer, connected
from tests.support import RunningNode, running_node, until

pytestmark = pytest.mark.node


class Tap:
    """The RTP packets and sender reports that a peer receives from now on; it handles them, too."""

    def __init__(self, peer: RtcPeer) -> None:
        self.rtp: list[RtpPacket] = []
        self.reports: list[RtcpSrPacket] = []
        receiver: Any = peer.connection.getReceivers()[0]
        handle_rtp, handle_rtcp = receiver._handle_rtp_packet, receiver._handle_rtcp_packet

        async def rtp(packet: RtpPacket, arrival_time_ms: int) -> None:
            self.rtp.append(packet)
            await handle_rtp(packet, arrival_time_ms=arrival_time_ms)

        async def rtcp(packet: Any) -> None:
            self.reports += [packet] if isinstance(packet, RtcpSrPacket) else []
            await handle_rtcp(packet)

        receiver._handle_rtp_packet, receiver._handle_rtcp_packet = rtp, rtcp


def node_peer(node: RunningNode, peer: RtcPeer) -> Any:
    return node.node.peers[peer.session_id]


async def test_packets_follow_one_another_without_a_gap(node: RunningNode, peer: RtcPeer) -> None:
    """In silence, in speech, and over the wrap of both counters."""
    there = node_peer(node, peer)
    there._peer._sender._sequence, there._peer._sender._origin = 0xFFFF - 60, 2**32 - 100 * PACKET_TICKS
    tap = Tap(peer)
    await peer.wait(lambda: len(tap.rtp) > 20)
    peer.say("t1", "hello there, how are you today", voice="tone-440")
    await peer.message("context.done", context_id="t1")
    await peer.wait(lambda: len(tap.rtp) > 150)
    assert {packet.ssrc for packet in tap.rtp} == {there._peer._sender._ssrc}
    assert len({packet.payload_type for packet in tap.rtp}) == 1
    assert set(np.diff([packet.sequence_number for packet in tap.rtp]) % 2**16) == {1}
    assert set(np.diff([packet.timestamp for packet in tap.rtp]) % 2**32) == {PACKET_TICKS}


async def test_a_peer_that_prefers_dtx_gets_few_packets_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is left out, the timestamps go on, and the first packet after a pause is marked (RFC 7587)."""
    offer = RtcPeer.offer

    async def with_dtx(peer: RtcPeer) -> str:
        sdp = await offer(peer)
        opus = next(line.split()[0].rpartition(":")[2] for line in sdp.splitlines() if "opus/48000/2" in line)
        return sdp.replace("a=rtcp-mux", f"a=fmtp:{opus} minptime=10;usedtx=1\r\na=rtcp-mux", 1)

    monkeypatch.setattr(RtcPeer, "offer", with_dtx)
    async with running_node() as node, connected(node.url) as peer:
        assert node_peer(node, peer)._track.dtx
        await asyncio.sleep(1)
        tap = Tap(peer)
        await asyncio.sleep(2)
        assert len(tap.rtp) <= 6
        peer.say("t1", "hello there", voice="tone-440")
        await peer.message("context.done", context_id="t1")
        await peer.wait(lambda: any(packet.payload == SILENCE for packet in tap.rtp))
        assert set(np.diff([packet.sequence_number for packet in tap.rtp]) % 2**16) == {1}
        pauses = np.diff([packet.timestamp for packet in tap.rtp]) % 2**32 // PACKET_TICKS
        assert set(pauses[:3]) == {DTX_EVERY}
        assert [packet.marker for packet in tap.rtp[1:]] == [int(pause > 1) for pause in pauses]


@pytest.mark.real_time  # aiortc reads the wall clock by another function
async def test_sender_reports_and_statistics_count_every_packet(node: RunningNode, peer: RtcPeer) -> None:
    """A report's two times belong together: a peer measures the round trip, and lines streams up, by them."""
    tap, there = Tap(peer), node_peer(node, peer)
    await peer.wait(lambda: len(tap.reports) > 1)
    first, last = (report.sender_info for report in (tap.reports[0], tap.reports[-1]))
    seconds = (last.ntp_timestamp - first.ntp_timestamp) / 2**32
    assert (last.rtp_timestamp - first.rtp_timestamp) % 2**32 / 48_000 == pytest.approx(seconds, abs=0.03)
    assert last.packet_count - first.packet_count == pytest.approx(50 * seconds, abs=2)
    assert last.octet_count - first.octet_count == 3 * (last.packet_count - first.packet_count)
    stats = next(one for one in (await there._peer._sender.getStats()).values() if one.type == "outbound-rtp")
    assert stats.packetsSent >= last.packet_count
    await until(lambda: there._peer.guard.heard_at > 0, 10)


async def test_a_request_to_send_again_is_ignored(node: RunningNode, peer: RtcPeer) -> None:
    """No answer offers it: nothing of what was sent is kept."""
    tap, there = Tap(peer), node_peer(node, peer)
    await peer.wait(lambda: len(tap.rtp) > 5)
    nack = RtcpRtpfbPacket(fmt=RTCP_RTPFB_NACK, ssrc=1, media_ssrc=there._peer._sender._ssrc)
    nack.lost = [packet.sequence_number for packet in tap.rtp]
    await there._peer._sender._handle_rtcp_packet(nack)
    count = len(tap.rtp)
    await peer.wait(lambda: len(tap.rtp) > count + 5)
    assert len({packet.sequence_number for packet in tap.rtp}) == len(tap.rtp)


async def test_an_error_in_the_packets_of_one_peer_ends_it_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They share a timer: the error must not get to it."""
    async with running_node() as node:
        clock = node.node.packet_clock
        clock._grids = clock._grids[:1]
        async with connected(node.url) as one, connected(node.url) as other:
            broken, play = node_peer(node, one)._track, SpeechTrack.next_packet

            def fail(track: SpeechTrack) -> bytes | None:
                if track is broken:
                    raise ZeroDivisionError
                return play(track)

            monkeypatch.setattr(SpeechTrack, "next_packet", fail)
            count = len(other.frames)
            await other.wait(lambda: len(other.frames) > count + 20)
            assert len(clock._grids[0].sends) == 1
            await until(lambda: list(node.node.peers) == [other.session_id])


async def test_a_peer_that_closes_leaves_the_clock(node: RunningNode, peer: RtcPeer) -> None:
    await peer.wait(lambda: peer.frames)
    assert sum(len(grid.sends) for grid in node.node.packet_clock._grids) == 1
    await peer.close()
    await until(lambda: not node.node.peers)
    assert all(grid._timer is None for grid in node.node.packet_clock._grids)
