"""What says that speech is synthetic: in files, in HTTP responses, and in the first message of a session."""

from __future__ import annotations

from typing import Any

# IPTC's term for what a trained model has made, which C2PA uses, too.
DIGITAL_SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"

# The comment in every audio file that has room for one.
MARK = f"Synthetic speech, made by a computer (agent_tts). Digital source type: {DIGITAL_SOURCE}"

_PIECE = 65_536  # bytes of a file that are looked at at once

# Every HTTP response with speech has these: an Internet-Draft's field (draft-abaris-aicdh), a dictionary of RFC 9651.
HEADERS = {"AI-Disclosure": "mode=machine-generated"}


def has_mark(file: bytes) -> bool:
    """Whether an audio file says what `MARK` says, in whatever place and encoding its format has for comments.

    For a thread: 10 MB take milliseconds. Others have the interpreter between pieces.
    """
    marks = [MARK.encode(encoding) for encoding in ("ascii", "utf-16-le", "utf-16-be")]
    longest = max(map(len, marks))
    pieces = (file[start : start + _PIECE + longest] for start in range(0, len(file), _PIECE))
    return any(mark in piece for piece in pieces for mark in marks)


def declaration(watermark: str | None) -> dict[str, Any]:
    """`provenance` of `session.created`; `watermark` names the one that is in all audio, None where there is none."""
    return {"synthetic": True, "digital_source_type": DIGITAL_SOURCE, "watermark": watermark}
