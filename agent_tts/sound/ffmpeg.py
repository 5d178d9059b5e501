"""The engine's audio in FFmpeg: its frames, and filters of a stream. pcm_s16le, 24 kHz, mono."""

from __future__ import annotations

from fractions import Fraction

import av
from av.filter import Graph

from agent_tts.engine_info import SAMPLE_RATE


def audio_frame(pcm: bytes) -> av.AudioFrame:
    """pcm_s16le for an encoder or a filter."""
    frame = av.AudioFrame(format="s16", layout="mono", samples=len(pcm) // 2)
    frame.sample_rate = SAMPLE_RATE
    frame.planes[0].update(pcm)
    return frame


class FilterStream:
    """A stream of audio through filters, each given by its name and its arguments."""

    def __init__(self, *filters: tuple[str, str]) -> None:
        graph = self._graph = Graph()
        graph.threads = 1  # otherwise FFmpeg starts one thread per core for each graph
        time_base = Fraction(1, SAMPLE_RATE)
        source = graph.add_abuffer(sample_rate=SAMPLE_RATE, format="s16", layout="mono", time_base=time_base)
        nodes = [graph.add(name, arguments) for name, arguments in filters]
        graph.link_nodes(source, *nodes, graph.add("abuffersink")).configure()

    def push(self, pcm: bytes | None) -> bytes:
        """The pcm_s16le that `pcm` completes; None ends the audio."""
        self._graph.push(None if pcm is None else audio_frame(pcm))
        ready: list[bytes] = []
        while True:
            try:
                piece = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return b"".join(ready)
            assert isinstance(piece, av.AudioFrame)
            # A plane has padding after its samples.
            ready.append(bytes(piece.planes[0])[: 2 * piece.samples])
