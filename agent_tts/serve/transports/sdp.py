"""Untrusted WebRTC offers: each value that the node needs is checked, and put into an offer of a known shape.

No line of a client's offer reaches aiortc, which negotiates anything it is given and fails later in its own tasks. One
audio section and one data channel are taken; the answer has port 0 for all others (RFC 8829, 5.3.1).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agent_tts.errors import BadMessage

MAX_LINES = 2_048  # a browser's offer of audio and a data channel has about 80, each section of video 170 more
MAX_CANDIDATES = 64
MAX_FINGERPRINTS = 8
DEFAULT_MAX_MESSAGE = 65_536  # bytes, for an offer without a=max-message-size (RFC 8841)

_TOKEN = re.compile(r"[!-~]{1,64}")
_MEDIA = re.compile(r"([a-z]{1,32}) ([0-9]{1,5}) ([A-Z/]{1,32}) ([!-~][!-~ ]{0,1023})")
_UFRAG = re.compile(r"[A-Za-z0-9+/]{4,256}")
_PASSWORD = re.compile(r"[A-Za-z0-9+/]{22,256}")
_FINGERPRINT = re.compile(r"(sha-256|sha-384|sha-512) ([0-9A-F]{2}(?::[0-9A-F]{2}){31,63})", re.IGNORECASE | re.ASCII)
_CANDIDATE = re.compile(
    r"([A-Za-z0-9+/]{1,32}) ([0-9]{1,3}) ([A-Z]{1,8}) ([0-9]{1,10}) ([!-~]{1,255}) ([0-9]{1,5}) typ ([a-z]{1,8})\b",
    re.IGNORECASE | re.ASCII,
)
_CANDIDATE_TYPES = ("host", "srflx", "relay")
_OPUS = re.compile(r"(9[6-9]|1[01][0-9]|12[0-7]) opus/48000/2", re.IGNORECASE | re.ASCII)
_SETUPS = ("actpass", "active", "passive")
_DIRECTIONS = ("sendrecv", "recvonly", "sendonly", "inactive")


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer that the node can answer."""

    sdp: str  # made here, for aiortc
    max_message: int  # bytes that the client accepts in one data channel message
    dtx: bool  # whether it prefers to get few packets in silence (usedtx=1, RFC 7587)
    sections: tuple[str | None, ...]  # of the client's offer: None for one in `sdp`, else the answer that refuses it

    def answer(self, sdp: str) -> str:
        """The answer to the client, from aiortc's answer to `self.sdp`."""
        head, *taken = re.split("^(?=m=)", sdp, flags=re.MULTILINE)
        left = iter(taken)
        return head + "".join(next(left) if refusal is None else refusal for refusal in self.sections)


@dataclass(slots=True)
class _Section:
    """The lines of the session, or of one m-line."""

    media: tuple[str, str, str, str] = ("", "0", "", "")  # kind, port, protocol and formats of the m-line
    attributes: dict[str, list[str]] = field(default_factory=dict)  # name -> values in order

    def first(self, name: str) -> str | None:
        return self.attributes[name][0] if name in self.attributes else None

    @property
    def direction(self) -> str:
        return next((name for name in _DIRECTIONS if name in self.attributes), "sendrecv")

    def refusal(self, mid: str) -> str:
        kind, _, protocol, formats = self.media
        return f"m={kind} 0 {protocol} {formats.split()[0]}\r\nc=IN IP4 0.0.0.0\r\na=inactive\r\na=mid:{mid}\r\n"


def read_offer(text: str, *, microphone: bool = False) -> Offer:
    """Check an offer and build a clean one from its values.

    Candidates with host names (mDNS) are dropped: resolving them takes multicast, and the client's own connectivity
    checks reveal its address. a=end-of-candidates is dropped too, because these checks may add candidates.

    Args:
        microphone: whether the client's audio is received, if it sends some.

    Raises:
        BadMessage: the node cannot answer the offer; the message says what is missing.
    """
    session, sections = _sections(text)
    mids = [_need(_TOKEN, section.first("mid"), "a mid in each section") for section in sections]
    if len(set(mids)) < len(mids):
        raise BadMessage("sdp: two sections must not have the same mid")
    audio, audio_lines = _taken(sections, "audio", lambda section: _audio(section, microphone))
    channel, channel_lines = _taken(sections, "application", _channel)
    lines_of = {id(audio): audio_lines, id(channel): channel_lines}
    taken = {mid: section for mid, section in zip(mids, sections, strict=True) if id(section) in lines_of}
    groups = [value.split()[1:] for value in session.attributes.get("group", []) if value.startswith("BUNDLE ")]
    bundle = [mid for mid in dict.fromkeys(groups[0]) if mid in taken] if groups else []
    if len(bundle) < len(taken):
        raise BadMessage("sdp: audio and data channel must be bundled (a=group:BUNDLE)")
    transport = _transport(session, taken[bundle[0]])
    lines = ["v=0", "o=- 0 0 IN IP4 0.0.0.0", "s=-", "t=0 0", f"a=group:BUNDLE {' '.join(bundle)}"]
    lines += ["a=ice-lite"] if "ice-lite" in session.attributes else []
    for mid, section in taken.items():
        lines += [*lines_of[id(section)], f"a=mid:{mid}", *transport]
    refusals = (None if mid in taken else section.refusal(mid) for mid, section in zip(mids, sections, strict=True))
    return Offer("\r\n".join(lines) + "\r\n", _max_message(channel), _has_dtx(audio), tuple(refusals))


def read_candidate(text: str) -> str | None:
    """Check one candidate, as it stands behind `candidate:`, and build a clean one.

    Returns:
        None for one that the node cannot use: not UDP, of another component, a host name, no unicast address.

    Raises:
        BadMessage: it is not a candidate.
    """
    found = _CANDIDATE.match(text)
    if found is None:
        raise BadMessage("a candidate must be a line as the browser gives it")
    foundation, component, transport, priority, host, port, kind = found.groups()
    if not 0 < int(port) < 65_536:
        raise BadMessage("the port of a candidate is from 1 to 65535")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if "%" in host:  # a zone, which names an interface of the client's machine
        return None
    usable = int(component) == 1 and transport.lower() == "udp" and kind.lower() in _CANDIDATE_TYPES
    if not usable or address.is_multicast or address.is_unspecified or address.is_reserved:
        return None
    return f"{foundation} 1 udp {priority} {address} {port} typ {kind.lower()}"


def _sections(text: str) -> tuple[_Section, list[_Section]]:
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise BadMessage(f"sdp: an offer has at most {MAX_LINES} lines")
    if not lines or lines[0] != "v=0":
        raise BadMessage("sdp: an offer must begin with v=0")
    session = current = _Section()
    sections: list[_Section] = []
    for line in lines:
        kind, _, rest = line.partition("=")
        if kind == "m":
            media = _MEDIA.fullmatch(rest)
            if media is None:
                raise BadMessage("sdp: an m-line needs a media, a port, a protocol and formats")
            current = _Section((media[1], media[2], media[3], media[4]))
            sections.append(current)
        elif kind == "a":
            name, _, value = rest.partition(":")
            current.attributes.setdefault(name, []).append(value)
    return session, sections


def _taken(sections: list[_Section], kind: str, read: Callable[[_Section], list[str]]) -> tuple[_Section, list[str]]:
    """The section of a kind that is answered, and its lines: the first that can be, those that send and receive before.

    One without a port of its own is offered, too, if it is for the bundle alone (a=bundle-only, RFC 9143).
    """
    offered = [each for each in sections if each.media[0] == kind]
    offered = [each for each in offered if each.media[1] != "0" or "bundle-only" in each.attributes]
    fault = BadMessage("sdp: an offer must have an audio and a data channel (application) section")
    for section in sorted(offered, key=lambda each: each.direction != "sendrecv"):
        try:
            return section, read(section)
        except BadMessage as error:
            fault = error
    raise fault


def _audio(section: _Section, microphone: bool) -> list[str]:
    _, _, protocol, formats = section.media
    if protocol != "UDP/TLS/RTP/SAVPF":
        raise BadMessage("sdp: audio must be UDP/TLS/RTP/SAVPF")
    if "rtcp-mux" not in section.attributes:
        raise BadMessage("sdp: audio needs rtcp-mux")
    if section.direction not in ("sendrecv", "recvonly"):
        raise BadMessage("sdp: the client must receive audio (a=recvonly or a=sendrecv)")
    offered = frozenset(formats.split())
    for value in section.attributes.get("rtpmap", []):
        opus = _OPUS.fullmatch(value)
        if opus is not None and opus[1] in offered:
            head = f"m=audio 9 UDP/TLS/RTP/SAVPF {opus[1]}"
            accepted = section.direction if microphone else "recvonly"
            return [head, f"a=rtpmap:{opus[1]} opus/48000/2", f"a={accepted}", "a=rtcp-mux"]
    raise BadMessage("sdp: audio needs opus/48000/2 at a dynamic payload type")


def _has_dtx(audio: _Section) -> bool:
    opus = {found[1] for value in audio.attributes.get("rtpmap", []) if (found := _OPUS.fullmatch(value))}
    formats = (value.partition(" ") for value in audio.attributes.get("fmtp", []))
    return any(kind in opus and "usedtx=1" in options.replace(" ", "").split(";") for kind, _, options in formats)


def _channel(section: _Section) -> list[str]:
    if section.media[2:] != ("UDP/DTLS/SCTP", "webrtc-datachannel"):
        raise BadMessage("sdp: the data channel must be UDP/DTLS/SCTP webrtc-datachannel")
    port = section.first("sctp-port") or ""
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise BadMessage("sdp: the data channel needs an sctp-port")
    head = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"
    return [head, f"a=sctp-port:{int(port)}", f"a=max-message-size:{_max_message(section)}"]


def _max_message(section: _Section) -> int:
    size = section.first("max-message-size") or ""
    if not (size.isascii() and size.isdecimal() and len(size) <= 18):
        return DEFAULT_MAX_MESSAGE
    return int(size) or 2**31  # 0: no limit


def _transport(session: _Section, section: _Section) -> list[str]:
    """ICE and DTLS lines of the first section of the bundle that is taken, which both share."""

    def value(name: str) -> str | None:
        return section.first(name) or session.first(name)

    ufrag = _need(_UFRAG, value("ice-ufrag"), "an ice-ufrag of 4 to 256 characters")
    password = _need(_PASSWORD, value("ice-pwd"), "an ice-pwd of 22 to 256 characters")
    setup = value("setup")
    if setup not in _SETUPS:
        raise BadMessage(f"sdp: setup must be one of {', '.join(_SETUPS)}")
    fingerprints = session.attributes.get("fingerprint", []) + section.attributes.get("fingerprint", [])
    known = [found for given in fingerprints[:MAX_FINGERPRINTS] if (found := _FINGERPRINT.fullmatch(given.strip()))]
    if not known:
        raise BadMessage("sdp: a fingerprint of sha-256, sha-384 or sha-512 is needed")
    lines = [f"a=ice-ufrag:{ufrag}", f"a=ice-pwd:{password}", f"a=setup:{setup}"]
    lines += [f"a=fingerprint:{found[1].lower()} {found[2].upper()}" for found in known]
    return lines + _candidates(section)


def _candidates(section: _Section) -> list[str]:
    given = section.attributes.get("candidate", [])
    if len(given) > MAX_CANDIDATES:
        raise BadMessage(f"sdp: an offer has at most {MAX_CANDIDATES} candidates")
    lines = []
    for text in given:
        with contextlib.suppress(BadMessage):
            line = read_candidate(text)
            lines += [f"a=candidate:{line}"] if line is not None else []
    return lines


def _need(shape: re.Pattern[str], value: str | None, what: str) -> str:
    if value is None or not shape.fullmatch(value):
        raise BadMessage(f"sdp: {what} is needed")
    return value
