"""The LLM, the speech recognition and the pipeline of an agent: found, or reported as missing with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import certifi
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from pipecat.frames.frames import (
    AudioRawFrame,
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi.frames import RTVISendTextFrame
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.tests.utils import run_test
from prometheus_client import CollectorRegistry

from agent_tts.agent.call import load_build
from agent_tts.agent.llm import MAX_WORDS, LanguageModel, Responder, answer
from agent_tts.agent.one_message import OneMessageContext
from agent_tts.agent.realtime.conversation import MAX_CHARS, MAX_ITEMS
from agent_tts.agent.stt import LONGEST_S, MOST_WAITING, RecognisingFrame, ScriptedSTT, SpeechToText, _reason
from agent_tts.agent.turns import AgentMetrics, Turns, _after
from agent_tts.config.settings import AgentLlm, AgentStt
from agent_tts.errors import SettingsError
from tests.agent.llm_server import MODEL, running_llm
from tests.support import ended, logged, typed


async def test_a_reachable_language_model_is_used_and_its_first_model_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are not read in the loop's thread, where that would silence the other calls."""
    readers: list[str] = []

    def read(*args: Any, **named: Any) -> ssl.SSLContext:
        readers.append(threading.current_thread().name)
        return create(*args, **named)

    create = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", read)
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())  # OpenAI's client reads the system's in another way
    async with running_llm() as llm:
        model = LanguageModel(AgentLlm(base_url=llm.url, look_s=30))
        status = await model.status()
        assert (status.kind, status.name, status.message) == ("openai", MODEL, None)
        service = typed(OpenAILLMService, await model.service())
        await service.cleanup()
    assert len(readers) >= 2
    assert threading.main_thread().name not in readers


async def test_an_unknown_model_is_reported_with_the_models_of_the_server() -> None:
    async with running_llm() as llm:
        status = await LanguageModel(AgentLlm(base_url=llm.url, model="owl")).status()
    assert status.kind == "builtin"
    assert "no model owl" in str(status.message)
    assert MODEL in str(status.message)


async def test_a_server_that_starts_later_is_found() -> None:
    """A probe's result is kept for a few seconds only."""
    now = 0.0
    async with running_llm() as llm:
        model = LanguageModel(AgentLlm(base_url=f"{llm.url}/nowhere"), clock=lambda: now)
        assert (await model.status()).kind == "builtin"
        assert isinstance(await model.service(), Responder)
        model._settings = AgentLlm(base_url=llm.url)
        assert (await model.status()).kind == "builtin"
        now = 60.0
        assert (await model.status()).kind == "openai"


@pytest.mark.node
async def test_one_look_at_a_time_is_for_all_who_ask() -> None:
    """Without the rule each question makes a client and a socket, while the server answers nothing."""
    asked = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        with contextlib.closing(writer):
            await reader.read()  # the request, and then nothing until the client is gone

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        model = LanguageModel(AgentLlm(base_url=f"http://127.0.0.1:{port}", look_s=1))
        gone = asyncio.create_task(model.status())
        others = [asyncio.create_task(model.status()) for _ in range(20)]
        await asyncio.sleep(0)
        await ended(gone)  # who began the look does not end it
        found = await asyncio.gather(*others)
        assert {status.kind for status in found} == {"builtin"}
        assert asked == 1
        assert await model.status() == found[0]
        await model.close()
    assert asked == 1


def test_the_responder_repeats_the_last_user_text() -> None:
    assert "no language model" in answer([])
    first = {"role": "user", "content": "Good morning."}
    assert answer([first]).endswith("You said: Good morning.")
    messages = [first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "And?"}]
    assert answer(messages) == "You said: And?"


async def test_what_is_no_text_in_a_context_is_left_out() -> None:
    """Images, sound and results of tools. The observer of the call, which ends with its first error, sees each turn."""
    image = await LLMContext.create_image_message(
        format="RGB", size=(2, 2), image=bytes(12), text="What is on this picture?"
    )
    sound = await LLMContext.create_audio_message(audio_frames=[AudioRawFrame(bytes(320), 16_000, 1)], text="Listen.")
    url = LLMContext.create_image_url_message(url="https://example.com/a.png")
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    tool: list[Any] = [
        *({"role": "user", "content": "And now?"}, {"role": "assistant", "content": None, "tool_calls": [call]}),
        *({"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "ten"}]},),
        LLMSpecificMessage(llm="other", message=object()),
    ]
    conversations: list[list[Any]] = [[image], [image, sound], [url], tool, [{"role": "user"}]]
    contexts = [LLMContext(messages) for messages in conversations]
    told: list[dict[str, Any]] = []
    turns = Turns("call", AgentMetrics(CollectorRegistry()), told.append)
    frames = [frame for each in contexts for frame in (TranscriptionFrame("x", "", ""), LLMContextFrame(each))]
    down, _ = await run_test(Responder(), frames_to_send=frames, observers=[turns])
    said = "".join(frame.text for frame in down if isinstance(frame, LLMTextFrame))
    for words in ("You said: What is on this picture? ", "You said: Listen. ", "You said: And now? "):
        assert words in said
    assert said.count("no language model") == 4
    assert "{" not in said
    assert turns.count == len(contexts)


async def test_marks_follow_the_end_of_the_words_that_were_answered() -> None:
    """A recogniser that is late: a segment of a turn comes after the answer to its first, a cough before its words.

    Mutations: the end of a voice is used for one answer alone; a cough moves it.
    """
    now, registry = 0.0, CollectorRegistry()
    told: list[dict[str, Any]] = []
    turns = Turns("call", AgentMetrics(registry), told.append, lambda: now)
    words, stopped = TranscriptionFrame("Two.", "", ""), VADUserStoppedSpeakingFrame(stop_secs=0.2)

    async def push(at: float, *frames: Frame) -> None:
        nonlocal now
        now = at
        for frame in frames:
            source, way = FrameProcessor(), FrameDirection.DOWNSTREAM
            await turns.on_push_frame(FramePushed(source, source, frame, way, 0))

    def marks() -> dict[str, int]:
        turns.sounded()
        return {name: ms for name, ms in told[-1]["marks"].items() if ms is not None}

    context = LLMContextFrame(LLMContext())
    await push(10.0, stopped)
    await push(10.6, words, context, LLMFullResponseStartFrame())
    assert marks() == {"user_stopped": 0, "transcript": 800, "turn_end": 800, "audio_first": 800}
    await push(11.0, words)  # of the same voice, behind the answer
    await push(11.8, context, LLMFullResponseStartFrame())
    assert marks() == {"user_stopped": 0, "transcript": 1_200, "turn_end": 2_000, "audio_first": 2_000}
    await push(20.0, stopped)
    await push(20.5, words)
    await push(21.0, stopped)  # a cough
    await push(21.5, context, LLMFullResponseStartFrame())
    assert marks() == {"user_stopped": 0, "transcript": 700, "turn_end": 1_700, "audio_first": 1_700}
    await push(30.0, stopped)
    await push(30.2, words, UserBackchannelFrame("Yeah.", "", ""))
    await push(35.0, RTVISendTextFrame("", "Hello."), context, LLMFullResponseStartFrame())
    assert marks() == {"user_stopped": 0, "audio_first": 0}


async def test_the_responder_gives_way_after_each_word_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller may type 8 KB without a full stop. Mutation: without the sleep Pipecat holds the loop for a second."""
    turns, pushed = 0, []

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def push(frame: Frame, _: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        pushed.append((turns, frame))

    async def nothing(*_: object) -> None:
        pass

    responder = Responder()
    monkeypatch.setattr(responder, "push_frame", push)
    monkeypatch.setattr(FrameProcessor, "process_frame", nothing)
    counter = asyncio.create_task(count())
    await asyncio.sleep(0)
    context = LLMContext([{"role": "user", "content": "hello " * 1_000}])
    await responder.process_frame(LLMContextFrame(context), FrameDirection.DOWNSTREAM)
    await ended(counter)
    words = [turn for turn, frame in pushed if isinstance(frame, LLMTextFrame)]
    assert len(set(words)) == len(words) == MAX_WORDS
    assert isinstance(pushed[-1][1], LLMFullResponseEndFrame)


def contents(context: OneMessageContext) -> list[tuple[str, str]]:
    messages: list[Any] = context.get_messages()
    return [(message["role"], message["content"]) for message in messages]


def test_a_calls_context_is_as_long_as_a_conversation_of_realtime() -> None:
    """What is oldest is forgotten; results go with their calls. Mutation: `_forget` forgets nothing."""
    context = OneMessageContext([{"role": "system", "content": "Be brief."}])
    function = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    context.add_messages(
        [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "tool_calls": [function]},
            {"role": "tool", "tool_call_id": "1", "content": "ten"},
            {"role": "assistant", "content": "Ten."},
        ]
    )
    for number in range(100):
        context.add_message({"role": "user", "content": f"{number} " + "x" * 8_000})  # typed, and not answered
    assert [role for role, _ in contents(context)] == ["system", "user"]
    assert len(contents(context)[1][1]) == MAX_CHARS
    assert context.last_of("user").endswith("99 " + "x" * 8_000)
    context.add_message({"role": "assistant", "content": "What?"})
    assert contents(context) == [("system", "Be brief."), ("assistant", "What?")]
    for number in range(MAX_ITEMS // 2 + 10):
        context.add_message({"role": "user", "content": f"{number}"})
        context.add_message({"role": "assistant", "content": "Yes."})
    assert len(context.get_messages()) == MAX_ITEMS
    assert contents(context)[0] == ("system", "Be brief.")


def test_a_result_is_forgotten_with_its_call() -> None:
    """Servers refuse one without the other."""
    function = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    context = OneMessageContext()
    context.add_message({"role": "assistant", "content": "x" * (MAX_CHARS - 200), "tool_calls": [function]})
    for call_id in ("1", "2"):
        context.add_message({"role": "tool", "tool_call_id": call_id, "content": "ten"})
    context.add_message({"role": "user", "content": "x" * 300})
    assert contents(context) == [("user", "x" * 300)]


async def test_the_responder_reads_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: it splits all of the text."""

    class Counted(str):
        """A text that counts what it is split into."""

        def split(self, *given: Any, **named: Any) -> list[str]:
            found = super().split(*given, **named)
            parts.append(len(found))
            return found

    parts: list[int] = []
    monkeypatch.setattr("agent_tts.agent.llm.answer", lambda _: Counted("hello " * 60_000))
    down, _ = await run_test(Responder(), frames_to_send=[LLMContextFrame(LLMContext())])
    assert sum(isinstance(frame, LLMTextFrame) for frame in down) == MAX_WORDS
    assert parts == [MAX_WORDS + 1]


class Recogniser(ScriptedSTT):
    """Notes the seconds of each segment, and recognises none before a voice has ended, if it is slow."""

    def __init__(self, *, is_slow: bool = False) -> None:
        super().__init__("Yes.")
        self.heard: list[float] = []
        self._may_go_on = asyncio.Event()
        if not is_slow:
            self._may_go_on.set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            self._may_go_on.set()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        self.heard.append(len(audio) / 32_000)
        await self._may_go_on.wait()
        async for frame in super().run_stt(audio):
            yield frame


def voice(seconds: int) -> list[Frame]:
    """A voice without a pause."""
    second = bytes(32_000)
    sound = [InputAudioRawFrame(second, 16_000, 1) for _ in range(seconds)]
    return [VADUserStartedSpeakingFrame(), *sound, VADUserStoppedSpeakingFrame()]


async def test_a_voice_without_a_pause_is_recognised_in_pieces() -> None:
    """All of it, and each of what is said after it. Mutation: `process_audio_frame` cuts nothing."""
    stt = Recogniser()
    down, _ = await run_test(stt, frames_to_send=[*voice(95), *voice(3)])
    assert stt.heard == [LONGEST_S + 0.5] * 3 + [5.5, 3.5]  # with Pipecat's silence behind each
    assert sum(isinstance(frame, TranscriptionFrame) for frame in down) == 5
    assert [frame.segments for frame in down if isinstance(frame, RecognisingFrame)][-1] == 0


async def test_a_recogniser_that_is_slower_than_the_voice_keeps_little_of_it() -> None:
    """An hour. Mutation: no bound on what waits."""
    stt = Recogniser(is_slow=True)
    with logged() as said:
        down, _ = await run_test(stt, frames_to_send=voice(3_615))
    assert stt.heard == [LONGEST_S + 0.5] * MOST_WAITING
    assert [frame.segments for frame in down if isinstance(frame, RecognisingFrame)][-1] == 0
    assert sum("speech is left out" in line for line in said) == 121 - MOST_WAITING


async def test_the_end_of_a_voice_that_was_not_heard_is_no_segment() -> None:
    """Realtime sessions tell of it, and recognise turns themselves."""
    stt = Recogniser()
    await run_test(stt, frames_to_send=[VADUserStoppedSpeakingFrame()])
    assert stt.heard == []


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_segment_is_recognised_in_the_pause_that_ends_it(*, goes_on: bool) -> None:
    """Once; what was recognised in another pause is dropped. Mutation: `pause` does nothing."""
    stt = Recogniser()
    heard_at_end: list[list[float]] = []

    async def pause() -> None:
        await stt.pause(True)
        await asyncio.sleep(0.05)
        if goes_on:
            await stt.pause(False)

    class Speaks(InputAudioRawFrame):
        """A second, and a pause after it."""

    push = stt.process_frame

    async def process(frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            heard_at_end.append(list(stt.heard))
        await push(frame, direction)
        if isinstance(frame, Speaks):
            await pause()

    stt.process_frame = process
    first, last = Speaks(bytes(32_000), 16_000, 1), InputAudioRawFrame(bytes(6_400), 16_000, 1)
    frames = [VADUserStartedSpeakingFrame(), first, last, VADUserStoppedSpeakingFrame(), *voice(2)]
    down, _ = await run_test(stt, frames_to_send=frames)
    assert heard_at_end[0] == [1.5]
    assert stt.heard == ([1.5, 1.7, 2.5] if goes_on else [1.5, 2.5])
    assert sum(isinstance(frame, TranscriptionFrame) for frame in down) == 2
    assert [frame.segments for frame in down if isinstance(frame, RecognisingFrame)][-1] == 0


def test_weights_that_cannot_be_fetched_are_told_with_the_command() -> None:
    """The hub's error is a `FileNotFoundError`, whose text has no advice."""
    assert "`agent-tts agent --whisper FOLDER`" in _reason(LocalEntryNotFoundError("An error happened"), AgentStt())


@pytest.mark.parametrize("model", ["/nowhere", "no-such-size"])
async def test_missing_weights_give_a_message_and_typed_chat_works(model: str, tmp_path: Path) -> None:
    stt = SpeechToText(AgentStt(model=model, folder=str(tmp_path)))
    stt.start()
    assert "being loaded" in str(stt.status.message)
    async with asyncio.timeout(60):
        await stt.wait()
    assert stt.status.kind == "none"
    assert model in str(stt.status.message)
    assert str(stt.status.message).endswith("Typed chat works.")
    assert stt.service() is None
    await stt.close()


def test_a_download_is_told_with_its_size(tmp_path: Path) -> None:
    for model, said in (("base.en", "2 of about 145 MB"), ("someone/whisper", "2 MB so far")):
        stt = SpeechToText(AgentStt(model=model, folder=str(tmp_path)))
        folder = tmp_path / model.replace("/", "--")
        folder.mkdir()
        (folder / "part").write_bytes(bytes(2_000_000))
        stt._tell_progress()
        assert f"being downloaded: {said}." in str(stt.status.message)


@pytest.mark.real_time
async def test_invalid_weights_give_a_message(tmp_path: Path) -> None:
    """The model is really loaded, and the loader refuses the files."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.bin").write_bytes(b"nothing")
    stt = SpeechToText(AgentStt(model=str(tmp_path)))
    stt.start()
    async with asyncio.timeout(60):
        await stt.wait()
    assert str(stt.status.message).startswith("Whisper could not be loaded: RuntimeError")
    await stt.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a Python file"),
        ("1/0", "cannot be run: ZeroDivisionError"),
        ("built = 1", "has no function build"),
    ],
)
def test_an_invalid_pipeline_file_is_a_settings_error(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        load_build(str(file))


def test_a_custom_pipeline_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def build(call):\n    return call\n")
    assert load_build(str(file))(7) == 7  # pyrefly: ignore[bad-argument-type]


def test_the_rest_of_a_text_follows_its_heard_words() -> None:
    assert _after("One two, three.", " One two,") == "three."
    assert _after("One two, three.", "") == "One two, three."
    assert _after("One.", " One.") == ""


async def test_scripted_recognition_needs_no_weights_and_reports_its_kind() -> None:
    stt = SpeechToText(AgentStt(kind="scripted", words="Go on."))
    stt.start()
    await stt.wait()
    assert stt.status.kind == "scripted"
    assert "Go on." in str(stt.status.message)
    assert isinstance(stt.service(), ScriptedSTT)
    await stt.close()


FIRST_CALL = """
import asyncio, sys
from pipecat.processors.aggregators.llm_context import LLMContext
from agent_tts.agent.llm import LanguageModel
from agent_tts.config.settings import AgentLlm

async def main():
    llm = LanguageModel(AgentLlm(base_url=sys.argv[1]))
    await llm.start()
    known = set(sys.modules)
    service = await llm.service(for_client=True)
    async for _ in await service.get_chat_completions(LLMContext([{"role": "user", "content": "Hello?"}])):
        pass
    await service._client.close()
    print("new:", *sorted(set(sys.modules) - known))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.real_time
async def test_the_first_call_imports_nothing() -> None:
    """No audio leaves while the event loop imports."""
    async with running_llm("Fine.") as llm:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FIRST_CALL, llm.url, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(child.communicate(), 60)
    assert out.decode().splitlines()[-1] == "new:"
