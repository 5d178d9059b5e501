"""LiveKit's agent session, with a simulated listener in place of a room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.llm import ChatMessage
from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities, TextOutput
from livekit.agents.voice.transcription.synchronizer import TranscriptSynchronizer

from agent_tts.integrations.livekit.tts import TTS
from tests.support import RunningNode, present, running_node, until

COUNT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."


class Loudspeaker(AudioOutput):
    """Plays in real time without a device, as the track of a room does."""

    def __init__(self) -> None:
        super().__init__(label="loudspeaker", capabilities=AudioOutputCapabilities(pause=False))
        self.began: float | None = None  # when the current audio began, on LiveKit's clock; None in silence
        self._captured_s = 0.0
        self._ending: asyncio.Task[None] | None = None

    @property
    def played_s(self) -> float:
        if self.began is None:
            return 0.0
        return min(self._captured_s, time.time() - self.began)  # noqa: TID251 - LiveKit's clock

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self.began is None:
            self.began = time.time()  # noqa: TID251
            self.on_playback_started(created_at=self.began)
        self._captured_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self.began is not None:
            self._ending = asyncio.create_task(self._play_out())

    def clear_buffer(self) -> None:
        if self.began is not None:
            if self._ending is not None:
                self._ending.cancel()
            self._end(interrupted=True)

    async def _play_out(self) -> None:
        await asyncio.sleep(self._captured_s - self.played_s)
        self._end(interrupted=False)

    def _end(self, *, interrupted: bool) -> None:
        played_s = self.played_s
        self.began, self._captured_s, self._ending = None, 0.0, None
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)


class Subtitles(TextOutput):
    """Records the words as they are shown."""

    def __init__(self) -> None:
        super().__init__(label="subtitles", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Called at the end of a reply."""


class Conversation:
    """An agent session and its simulated listener."""

    def __init__(self, session: AgentSession[Any], loudspeaker: Loudspeaker, subtitles: Subtitles) -> None:
        self.session = session
        self.loudspeaker = loudspeaker
        self.subtitles = subtitles

    @property
    def remembered(self) -> list[tuple[str | None, bool]]:
        """The replies in the LLM's context: (text, whether it was interrupted)."""
        messages = [item for item in self.session.history.items if isinstance(item, ChatMessage)]
        return [(message.text_content, message.interrupted) for message in messages if message.role == "assistant"]


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak") as running:
        yield running


@asynccontextmanager
async def conversation(speaker: TTS) -> AsyncIterator[Conversation]:
    """An agent session with LiveKit's synchronizer of words and audio."""
    loudspeaker, subtitles = Loudspeaker(), Subtitles()
    synchronizer = TranscriptSynchronizer(next_in_chain_audio=loudspeaker, next_in_chain_text=subtitles)
    session: AgentSession[Any] = AgentSession(tts=speaker, vad=None, use_tts_aligned_transcript=True)
    session.output.audio, session.output.transcription = synchronizer.audio_output, synchronizer.text_output
    await session.start(Agent(instructions="count"), record=False)
    try:
        yield Conversation(session, loudspeaker, subtitles)
    finally:
        await session.aclose()
        await synchronizer.aclose()


async def llm(text: str) -> AsyncIterator[str]:
    """Text in tokens, as an LLM writes it."""
    for start in range(0, len(text), 4):
        yield text[start : start + 4]
        await asyncio.sleep(0.01)


async def test_words_are_shown_as_they_are_heard(node: RunningNode) -> None:
    async with TTS(node.url) as speaker, conversation(speaker) as talk, asyncio.timeout(30):
        handle = talk.session.say(llm("Hello there, how are you today?"))
        await until(lambda: "Hello" in talk.subtitles.text)
        assert "today" not in talk.subtitles.text
        assert talk.loudspeaker.played_s < 1.5
        await handle
        assert talk.subtitles.text == "Hello there, how are you today?"
        assert talk.remembered == [("Hello there, how are you today?", False)]


async def test_an_interrupted_agent_remembers_the_heard_part(node: RunningNode) -> None:
    async with TTS(node.url) as speaker, conversation(speaker) as talk, asyncio.timeout(30):
        talk.session.say(llm(COUNT))
        await until(lambda: "four" in talk.subtitles.text, 10)
        await talk.session.interrupt()
        await until(lambda: node.node.service.speaking == 0, 1)
        await until(lambda: bool(talk.remembered))
        ((heard, interrupted),) = talk.remembered
        assert interrupted
        assert heard is not None
        assert COUNT.startswith(heard)
        assert 3 <= len(heard.split()) <= 6
        await talk.session.say(llm("The next turn is whole."))
        assert talk.remembered[1] == ("The next turn is whole.", False)
        assert len(node.node.sessions) == 1


async def test_markup_is_not_in_the_llms_context(node: RunningNode) -> None:
    text = '<expr type="expression" label="calm"/> Hello [laughs] there, <whisper>how are</whisper> you<break/> today?'
    async with TTS(node.url) as speaker, conversation(speaker) as talk, asyncio.timeout(30):
        await talk.session.say(llm(text))
        assert talk.remembered == [("Hello there, how are you today?", False)]
        assert talk.subtitles.text == "Hello there, how are you today?"
        talk.session.say(llm(f"<think>Count.</think> {COUNT.replace(' ', ' <emphasis/>')}"))
        await until(lambda: "four" in talk.subtitles.text, 10)
        await talk.session.interrupt()
        await until(lambda: len(talk.remembered) == 2)
        heard, _ = talk.remembered[1]
        assert COUNT.startswith(present(heard))
