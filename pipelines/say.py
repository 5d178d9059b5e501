"""The smallest useful pipeline: text in, speech out.

python pipelines/say.py "Hello there." -o hello.wav
echo "Hello there." | python pipelines/say.py - -o - | aplay -t raw -f S16_LE -r 24000
"""

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.workers.runner import WorkerRunner

from agent_tts.cli.node import own_settings
from agent_tts.cli.sinks import FileSink, StdoutSink
from agent_tts.pipecat import AgentTTSService
from agent_tts.serve.local_engine import engine


async def say(text: str, output: str, url: str | None, voice: str | None) -> str | None:
    """Speak a text into a file; returns an error message or None."""
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        node: dict[str, Any] = {"url": url} if url else {}
        if not url:
            node["speech"], _ = await stack.enter_async_context(engine(own_settings({})))
        sink = StdoutSink() if output == "-" else FileSink(Path(output))
        stack.push_async_callback(sink.close, True)
        unpaced = AgentTTSService.Settings(voice=voice, extra={"lead_ms": None})
        tts = AgentTTSService(settings=unpaced, **node)
        worker = PipelineWorker(Pipeline([tts]), params=PipelineParams(audio_out_sample_rate=24_000))

        async def on_frame(_: AgentTTSService, frame: Frame) -> None:
            if isinstance(frame, TTSAudioRawFrame):
                await sink.write(frame.audio)
            elif isinstance(frame, ErrorFrame):
                errors.append(frame.error)

        tts.add_event_handler("on_after_push_frame", on_frame)
        runner = WorkerRunner()
        await runner.add_workers(worker)
        await worker.queue_frames([TTSSpeakFrame(text), EndFrame()])
        await runner.run()
    return errors[0] if errors else None


if __name__ == "__main__":
    logger.remove()  # Pipecat logs every step
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="what to say; - reads standard input")
    parser.add_argument("-o", "--output", required=True, help="a .wav, .mp3, .flac, .opus or .pcm file; - writes pcm")
    parser.add_argument("--url", help="of a running node; without it, an engine of its own speaks")
    parser.add_argument("--voice", help="default: the node's")
    a = parser.parse_args()
    sys.exit(asyncio.run(say(sys.stdin.read() if a.text == "-" else a.text, a.output, a.url, a.voice)))
