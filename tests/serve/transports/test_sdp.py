from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_tts.errors import BadMessage
from agent_tts.serve.transports.sdp import DEFAULT_MAX_MESSAGE, MAX_CANDIDATES, MAX_LINES, read_offer

FINGERPRINT = "sha-256 " + ":".join(["AB"] * 32)

# As Chromium 155 writes it, with one audio transceiver and one data channel; long lists are shortened.
CHROMIUM = f"""v=0
o=- 4611731400430051336 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1
a=extmap-allow-mixed
a=msid-semantic: WMS
m=audio 53721 UDP/TLS/RTP/SAVPF 111 63 9 0 8 13 110 126
c=IN IP4 192.0.2.7
a=rtcp:9 IN IP4 0.0.0.0
a=candidate:1 1 udp 2113937151 8d4c1f4e-5f6e-4cb3-9f0b-1a2b3c4d5e6f.local 53721 typ host generation 0 network-cost 999
a=candidate:2 1 udp 2113937151 192.0.2.7 53721 typ host generation 0 network-cost 999
a=candidate:3 1 tcp 1518280447 192.0.2.7 9 typ host tcptype active generation 0
a=candidate:4 2 udp 2113937150 192.0.2.7 53722 typ host generation 0
a=candidate:5 1 UDP 1677729535 2001:db8::7 40000 typ srflx raddr 0.0.0.0 rport 0 generation 0
a=candidate:6 1 udp 2113937151 fe80::7%wlan0 40001 typ host generation 0
a=ice-ufrag:9uB6
a=ice-pwd:YH75Fviy6338Vbrhrlp8Yh9u
a=ice-options:trickle
a=fingerprint:{FINGERPRINT}
a=setup:actpass
a=mid:0
a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level
a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid
a=recvonly
a=rtcp-mux
a=rtcp-rsize
a=rtpmap:111 opus/48000/2
a=rtcp-fb:111 transport-cc
a=fmtp:111 minptime=10;useinbandfec=1
a=rtpmap:63 red/48000/2
a=fmtp:63 111/111
a=rtpmap:9 G722/8000
a=rtpmap:0 PCMU/8000
m=application 53721 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 192.0.2.7
a=candidate:2 1 udp 2113937151 192.0.2.7 53799 typ host generation 0 network-cost 999
a=ice-ufrag:9uB6
a=ice-pwd:YH75Fviy6338Vbrhrlp8Yh9u
a=ice-options:trickle
a=fingerprint:{FINGERPRINT}
a=setup:actpass
a=mid:1
a=sctp-port:5000
a=max-message-size:262144
""".replace("\n", "\r\n")


def lines(sdp: str, prefix: str) -> list[str]:
    return [line for line in sdp.splitlines() if line.startswith(prefix)]


def test_an_offer_is_rewritten() -> None:
    offer = read_offer(CHROMIUM)
    assert lines(offer.sdp, "m=") == [
        "m=audio 9 UDP/TLS/RTP/SAVPF 111",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
    ]
    assert lines(offer.sdp, "a=mid") == ["a=mid:0", "a=mid:1"]
    assert lines(offer.sdp, "a=rtpmap") == ["a=rtpmap:111 opus/48000/2"]
    assert lines(offer.sdp, "a=group") == ["a=group:BUNDLE 0 1"]
    assert "extmap" not in offer.sdp
    assert offer.max_message == 262_144


@pytest.mark.parametrize(
    ("line", "dtx"),
    [
        ("a=fmtp:111 minptime=10;useinbandfec=1", False),
        ("a=fmtp:111 minptime=10; usedtx=1", True),
        ("a=fmtp:111 usedtx=1;minptime=10", True),
        ("a=fmtp:111 usedtx=0", False),
        ("a=fmtp:111 usedtx=10", False),
        ("a=fmtp:63 usedtx=1", False),
        ("a=fmtp:111", False),
    ],
)
def test_few_packets_in_silence_are_for_those_who_ask(line: str, dtx: bool) -> None:
    assert read_offer(CHROMIUM.replace("a=fmtp:111 minptime=10;useinbandfec=1", line)).dtx is dtx


def test_candidates_are_the_reachable_ones_of_the_leading_section() -> None:
    """mDNS names, TCP and a second component are left out; the bundle's first section gives the transport of both."""
    wanted = ["a=candidate:2 1 udp 2113937151 192.0.2.7 53721 typ host"]
    wanted += ["a=candidate:5 1 udp 1677729535 2001:db8::7 40000 typ srflx"]
    assert lines(read_offer(CHROMIUM).sdp, "a=candidate") == wanted * 2
    other_first = CHROMIUM.replace("BUNDLE 0 1", "BUNDLE 1 0")
    wanted = ["a=candidate:2 1 udp 2113937151 192.0.2.7 53799 typ host"]
    assert lines(read_offer(other_first).sdp, "a=candidate") == wanted * 2


def test_order_of_sections_is_kept() -> None:
    head, audio, channel = re.split("(?=m=)", CHROMIUM)
    assert [line[:6] for line in lines(read_offer(head + channel + audio).sdp, "m=")] == ["m=appl", "m=audi"]


VIDEO = "m=video 9 UDP/TLS/RTP/SAVPF 96 97\r\na=sendrecv\r\na=mid:camera\r\na=ice-ufrag:other\r\n"
ANSWER = "v=0\r\na=group:BUNDLE 0 1\r\nm=audio 5 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\nm=application 5 X y\r\na=mid:1\r\n"


def with_sections(*order: str) -> str:
    """The offer with these sections, bundled in this order: a and c are its own."""
    head, audio, channel = re.split("(?=m=)", CHROMIUM)
    known = {"a": audio, "c": channel, "v": VIDEO}
    sections = [known.get(name, name) for name in order]
    mids = " ".join(re.findall("a=mid:(.*)\r", "".join(sections)))
    return head.replace("BUNDLE 0 1", f"BUNDLE {mids}") + "".join(sections)


@pytest.mark.parametrize("order", ["vac", "avc", "acv", "cva"])
def test_sections_that_are_not_taken_get_port_0_at_their_places(order: str) -> None:
    """Of a bundle that a refused section leads, the next gives the transport.

    Mutation: the answer has only what was taken; then browsers refuse it.
    """
    offer = read_offer(with_sections(*order))
    assert {line[2:6] for line in lines(offer.sdp, "m=")} == {"audi", "appl"}
    assert "other" not in offer.sdp
    taken = re.split("(?=m=)", ANSWER)
    own = ANSWER if order.index("a") < order.index("c") else taken[0] + taken[2] + taken[1]
    answered = lines(offer.answer(own), "m=")
    names = {"a": "m=audio 5", "c": "m=application 5", "v": "m=video 0 UDP/TLS/RTP/SAVPF 96"}
    assert all(line.startswith(names[name]) for line, name in zip(answered, order, strict=True))


# A second audio section, with lines that it has or lacks.
SECOND = re.split("(?=m=)", CHROMIUM)[1].replace("a=mid:0", "a=mid:second")


@pytest.mark.parametrize(
    ("second", "taken"),
    [
        (SECOND, "0"),
        (SECOND.replace("a=recvonly", "a=sendrecv"), "second"),
        (SECOND.replace("opus/48000/2", "G722/8000"), "0"),
        (SECOND.replace("m=audio 53721", "m=audio 0").replace("a=recvonly", "a=sendrecv"), "0"),
        (SECOND.replace("m=audio 53721", "m=audio 0").replace("a=recvonly", "a=bundle-only\r\na=sendrecv"), "second"),
    ],
)
def test_of_several_audio_sections_one_is_taken(second: str, taken: str) -> None:
    """One that sends and receives, if there is one; a port of 0 is an offer only where the bundle has the port."""
    offer = read_offer(with_sections("a", second, "c"), microphone=True)
    assert lines(offer.sdp, "a=mid") == [f"a=mid:{taken}", "a=mid:1"]
    assert [refusal is None for refusal in offer.sections] == [taken == "0", taken == "second", True]


def test_the_lines_of_refused_sections_are_checked_like_all() -> None:
    with pytest.raises(BadMessage, match="same mid"):
        read_offer(with_sections("a", "v", "v", "c"))
    with pytest.raises(BadMessage, match="a mid"):
        read_offer(with_sections("a", VIDEO.replace("mid:camera", "mid:"), "c"))


def test_ice_and_dtls_may_stand_in_the_session_part() -> None:
    """As Firefox writes its fingerprint."""
    moved = [f"a=fingerprint:{FINGERPRINT}\r\n", "a=setup:actpass\r\n"]
    text = CHROMIUM
    for line in moved:
        text = text.replace(line, "")
    text = text.replace("a=extmap-allow-mixed\r\n", "".join(moved) + "a=ice-lite\r\n")
    offer = read_offer(text)
    assert len(lines(offer.sdp, "a=fingerprint")) == 2
    assert "a=ice-lite" in offer.sdp


@pytest.mark.parametrize(
    ("line", "size"),
    [("a=max-message-size:0", 2**31), ("a=max-message-size:x", DEFAULT_MAX_MESSAGE), ("a=x", DEFAULT_MAX_MESSAGE)],
)
def test_message_size(line: str, size: int) -> None:
    assert read_offer(CHROMIUM.replace("a=max-message-size:262144", line)).max_message == size


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("v=0", "v=1", "begin with v=0"),
        ("m=audio", "m=video", "an audio and a data channel"),
        ("m=application", "m=audio", "an audio and a data channel"),
        ("webrtc-datachannel\r\n", " \r\n", "an m-line"),
        ("m=application 53721", "m=application 0", "an audio and a data channel"),
        ("m=application 53721 UDP", "m=application UDP", "an m-line"),
        ("m=application", "m=video 9 UDP/TLS/RTP/SAVPF 96\r\nm=application", "a mid in each section"),
        ("UDP/TLS/RTP/SAVPF", "RTP/AVP", "SAVPF"),
        ("UDP/DTLS/SCTP webrtc-datachannel", "DTLS/SCTP 5000", "webrtc-datachannel"),
        ("a=mid:1", "a=mid:0", "same mid"),
        ("a=mid:1", "a=mid:", "a mid in each section"),
        ("a=mid:1", "a=middle:1", "a mid in each section"),
        ("BUNDLE 0 1", "BUNDLE 0", "bundled"),
        ("BUNDLE 0 1", "LS 0 1", "bundled"),
        ("a=rtcp-mux", "a=x", "rtcp-mux"),
        ("a=recvonly", "a=sendonly", "receive audio"),
        ("a=recvonly", "a=inactive", "receive audio"),
        ("opus/48000/2", "opus/48000", "opus"),
        ("111", "72", "opus"),
        ("a=rtpmap:111 ", "a=rtpmap:112 ", "opus"),
        ("a=sctp-port:5000", "a=sctp-port:99999", "sctp-port"),
        ("a=sctp-port:5000", "a=sctp-port:٥", "sctp-port"),
        ("a=ice-ufrag:9uB6", "a=ice-ufrag:9u", "ice-ufrag"),
        ("a=ice-pwd:YH75Fviy6338Vbrhrlp8Yh9u", "a=ice-pwd:YH75Fviy6338Vbrhrlp8Yh9%", "ice-pwd"),
        ("a=setup:actpass", "a=setup:holdconn", "setup"),
        ("sha-256", "md5", "fingerprint"),
        ("AB:AB", "AB:GG", "fingerprint"),
        ("s=-", "s=-\r\n" * MAX_LINES, f"at most {MAX_LINES} lines"),
        ("a=rtcp-rsize", "a=candidate:1 1 udp 1 192.0.2.7 1 typ host\r\n" * MAX_CANDIDATES, "candidates"),
    ],
)
def test_unanswerable_offers_are_refused_with_a_reason(old: str, new: str, complaint: str) -> None:
    assert old in CHROMIUM
    with pytest.raises(BadMessage, match=re.escape(complaint)):
        read_offer(CHROMIUM.replace(old, new))


@pytest.mark.parametrize("host", ["224.0.0.1", "0.0.0.0", "255.255.255.255", "::", "ff02::1", "1.2.3", "a.local"])
def test_candidates_without_a_unicast_address_are_left_out(host: str) -> None:
    assert "typ host" not in read_offer(CHROMIUM.replace("192.0.2.7", host)).sdp


def test_errors_do_not_repeat_the_offer() -> None:
    with pytest.raises(BadMessage) as refusal:
        read_offer(CHROMIUM.replace("a=setup:actpass", "a=setup:<script>"))
    assert "script" not in refusal.value.message


def test_the_module_needs_only_the_standard_library() -> None:
    """The module handles untrusted input, so no third-party parser is used."""
    source = Path(read_offer.__code__.co_filename).read_text()
    imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE))
    assert imported == {"__future__", "agent_tts", "collections", "contextlib", "dataclasses", "ipaddress", "re"}
