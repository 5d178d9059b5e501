"""Speech at another speed and the same pitch, while it is streamed."""

from __future__ import annotations

import math
from fractions import Fraction

import av
from av.filter import Graph

from agent_tts.events import SAMPLE_RATE

# Speeds of one filter; others need several. Above the upper one it drops samples.
SLOWEST, FASTEST = 0.5, 2.0


class TimeStretch:
    """FFmpeg's `atempo` on one stream of pcm_s16le, 24 kHz, mono.

    It holds back up to 70 ms of its input until more comes or `finish`.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._graph = _graph(speed)
        # Samples that went in, and that came out.
        self._in = self._out = 0

    def push(self, pcm: bytes) -> bytes:
        """Add audio; gives what is ready at `speed`."""
        frame = av.AudioFrame(format="s16", layout="mono", samples=len(pcm) // 2)
        frame.sample_rate = SAMPLE_RATE
        frame.planes[0].update(pcm)
        self._in += frame.samples
        self._graph.push(frame)
        return self._pull()

    def finish(self) -> bytes:
        """The rest: all output together is `1 / speed` times as long as the input. Then it starts again."""
        if not self._in:
            return b""
        self._graph.push(None)
        rest = self._pull()
        owed = round(self._in / self._speed) - (self._out - len(rest) // 2)
        self._graph, self._in, self._out = _graph(self._speed), 0, 0
        return rest[: 2 * max(0, owed)].ljust(2 * max(0, owed), b"\0")

    def _pull(self) -> bytes:
        ready: list[bytes] = []
        while True:
            try:
                piece = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):
                break
            assert isinstance(piece, av.AudioFrame)
            ready.append(bytes(piece.planes[0])[: 2 * piece.samples])  # a plane is padded beyond its samples
        pcm = b"".join(ready)
        self._out += len(pcm) // 2
        return pcm


def _graph(speed: float) -> Graph:
    graph = Graph()
    graph.threads = 1  # FFmpeg starts one for each core otherwise, for every stream
    source = graph.add_abuffer(sample_rate=SAMPLE_RATE, format="s16", layout="mono", time_base=Fraction(1, SAMPLE_RATE))
    bound = SLOWEST if speed < 1 else FASTEST
    count = max(1, math.ceil(math.log(speed) / math.log(bound) - 1e-9))
    filters = [graph.add("atempo", f"{speed ** (1 / count)}") for _ in range(count)]
    graph.link_nodes(source, *filters, graph.add("abuffersink")).configure()
    return graph
