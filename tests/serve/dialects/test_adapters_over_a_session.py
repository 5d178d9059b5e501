"""Every adapter over a real session and engine, under any order of messages and time: no state is left behind."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from agent_tts.config.settings import Limits, Settings
from agent_tts.errors import RateLimited, SlowConsumer
from agent_tts.messages import Append, Audio, End, Open
from agent_tts.protocol.adapter import Command, Failed, ProtocolAdapter
from agent_tts.protocol.v1 import NativeAdapter
from agent_tts.serve import session
from agent_tts.serve.dialects.cartesia import CartesiaAdapter
from agent_tts.serve.dialects.deepgram import AuraAdapter, FluxAdapter
from agent_tts.serve.dialects.elevenlabs import MultiStreamAdapter, StreamAdapter
from agent_tts.serve.dialects.elevenlabs_dialogue import DialogueAdapter
from agent_tts.serve.dialects.platforms import JambonzAdapter
from agent_tts.serve.dialects.vllm_omni import VllmOmniAdapter
from agent_tts.serve.session import FOLLOWING, MAX_BEHIND, MESSAGE_COST
from tests.examples import examples
from tests.fuzz.conversation import SETTINGS, Conversation
from tests.support import NO_DICTIONARIES, present, recorded

CONFIG = SETTINGS.model_copy(update={"voice_aliases": {"*": "tone-440"}})


class Connected:
    """A connection without a socket."""

    def __init__(self, adapter: ProtocolAdapter, settings: Settings = CONFIG) -> None:
        self.talk = Conversation(settings)
        self.session = self.talk.session
        self.adapter = adapter
        self.told: list[dict[str, Any] | bytes] = []
        # Messages that the client sends while the writer waits, one at each wait.
        self.meanwhile: list[dict[str, Any]] = []
        self.session.receive(adapter.begin())

    @property
    def is_closed(self) -> bool:
        return (self.adapter.closing or self.session.closing) is not None

    def say(self, message: dict[str, Any]) -> None:
        self.session.receive(self.adapter.decode(json.dumps(message)))

    def take(self, count: int) -> None:
        """The messages to the client, as a connection's writer takes them."""
        for _ in range(count):
            if self.adapter.closing is not None:
                return
            event = self.session.poll()
            if event is None:
                return
            for data in tuple(self.adapter.encode(event)):
                self.told.append(json.loads(data) if isinstance(data, str) else data)
                if self.meanwhile:
                    self.say(self.meanwhile.pop(0))
            if more := self.adapter.follow():
                self.session.receive(more)
            if isinstance(event, Audio):
                return

    def settle(self) -> None:
        """Run until idle: every open context has ended, if only for lack of text."""
        for _ in range(100):
            self.talk.turn(3, 0.5)
            self.take(1_000)
            if not (self.session.is_speaking or self.session.is_reading):
                break


TEXTS = st.sampled_from(["One two. ", "three", " ", "", "x" * 39 + " ", "x" * 41, "Four."])
NAMES = st.sampled_from(["a", "b", "c"])
FLAG = st.booleans()

CARTESIA = st.fixed_dictionaries(
    {"transcript": TEXTS, "continue": FLAG, "context_id": NAMES, "add_timestamps": FLAG},
    optional={
        "flush": FLAG,
        "cancel": FLAG,
        "max_buffer_delay_ms": st.just(0),
        "output_format": st.just({"container": "?"}),
    },
)
ELEVENLABS = st.fixed_dictionaries(
    {"text": TEXTS | st.none(), "context_id": NAMES},
    optional={"flush": FLAG, "close_context": FLAG, "voice_settings": st.just({"speed": 9})},
)
LINES = st.fixed_dictionaries(
    {"text": TEXTS, "voice_id": st.sampled_from(["v", "w", None])}, optional={"new_turn": FLAG}
)
DIALOGUE = st.fixed_dictionaries(
    {"context_id": NAMES | st.none()},
    optional={
        "voices": st.lists(st.sampled_from(["v", "w", None]), min_size=1, max_size=2) | st.none(),
        "inputs": st.lists(LINES, max_size=3) | st.none(),
        "flush": FLAG | st.none(),
        "close_context": FLAG | st.none(),
        "keep_alive": FLAG,
    },
)
DEEPGRAM = st.fixed_dictionaries(
    {"type": st.sampled_from(["Speak", "Speak", "Flush", "Clear", "Interrupt"]), "text": TEXTS}
)
JAMBONZ = st.fixed_dictionaries(
    {"type": st.sampled_from(["stream", "stream", "flush", "stop", "keepalive"]), "text": TEXTS}
)
CONFIGURED = st.fixed_dictionaries(
    {"type": st.just("session.config"), "response_format": st.sampled_from(["pcm", "wav"])},
    optional={"stream_audio": FLAG, "word_timestamps": FLAG},
)
VLLM_OMNI = CONFIGURED | st.fixed_dictionaries(
    {"type": st.sampled_from(["input.text", "input.text", "input.done", "input.cancel"]), "text": TEXTS}
)
TIME = st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.08, 1.0, 4.0]), st.integers(0, 30))

FLUSH, CLOSE_SOCKET = {"type": "Flush"}, {"close_socket": True}

# Ends everything that a client may have left open.
ENDS: dict[str, list[dict[str, Any]]] = {
    "aura": [FLUSH],
    "flux": [FLUSH],
    "jambonz": [{"type": "flush"}],
    "vllm-omni": [{"type": "input.cancel"}],
}

PCM = {"output_format": "pcm_24000"}
SYNCED = PCM | {"sync_alignment": "true"}
OURS = (CONFIG.limits, NO_DICTIONARIES)
# How an adapter is made, what its clients send, the attributes that tell what is left, and a client's goodbye.
KINDS: dict[str, tuple[Callable[[], ProtocolAdapter], st.SearchStrategy[Any], list[str], dict[str, Any] | None]] = {
    "cartesia": (partial(CartesiaAdapter, *OURS), CARTESIA, ["_contexts"], None),
    "multi-stream": (partial(MultiStreamAdapter, "v", PCM, *OURS), ELEVENLABS, ["_open", "_waiting"], CLOSE_SOCKET),
    "stream": (partial(StreamAdapter, "v", PCM, *OURS), ELEVENLABS, ["_open"], {"text": ""}),
    "dialogue": (partial(DialogueAdapter, None, SYNCED, *OURS), DIALOGUE, ["_open", "_waiting"], CLOSE_SOCKET),
    "aura": (partial(AuraAdapter, {}, {}), DEEPGRAM, ["_utterance"], {"type": "Close"}),
    "jambonz": (partial(JambonzAdapter, {}), JAMBONZ, ["_utterance"], None),
    "vllm-omni": (partial(VllmOmniAdapter, 1_000), VLLM_OMNI, ["_utterance"], {"type": "session.close"}),
    "flux": (partial(FluxAdapter, {}, {}), DEEPGRAM, ["_utterance"], {"type": "Close"}),
}


@pytest.mark.parametrize("fatal", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "native"])
def test_every_protocol_says_why_a_caller_is_refused_and_when_to_come_again(kind: str, fatal: bool) -> None:
    """Over HTTP the headers say so, for all vendors."""
    adapter = NativeAdapter() if kind == "native" else KINDS[kind][0]()
    tuple(adapter.begin())
    told = [*adapter.encode(Failed(None, RateLimited("limits.requests_per_s", retry_after_ms=1_234), fatal=fatal))]
    if not told:  # it is told after the client's first message
        with pytest.raises(RateLimited) as refused:
            tuple(adapter.decode(json.dumps({"text": "Hi"})))
        told = [*adapter.encode(Failed(None, refused.value))]
    error = json.loads(told[0])
    assert error["retry_after_ms"] == 1_234
    assert "limits.requests_per_s" in error.values()


def run(kind: str, steps: list[Any], *, leaves_at_once: bool, stays: bool = False) -> Connected | None:
    """Run these steps, and settle; None when the connection was closed."""
    make, _, left, goodbye = KINDS[kind]
    peer = Connected(make())
    peer.take(10)
    try:
        for step in steps:
            if isinstance(step, dict):
                peer.say(step)
            elif isinstance(step, list):
                peer.meanwhile += step
            else:
                peer.talk.turn(*step[:2])
                peer.take(step[2])
        while peer.meanwhile:
            peer.say(peer.meanwhile.pop(0))
        if leaves_at_once and goodbye is not None:
            peer.say(goodbye)
    except SlowConsumer:
        return None
    peer.settle()
    if not peer.is_closed:
        for message in ENDS.get(kind, ()):
            peer.say(message)
        peer.settle()
        assert not peer.session.is_speaking
        assert not any(getattr(peer.adapter, name) for name in left)
        assert not peer.session._later
        if stays or goodbye is None:
            return peer
        peer.say(goodbye)
        peer.settle()
    assert peer.is_closed
    return None


@pytest.mark.parametrize("kind", KINDS)
@examples(60)
@given(data=st.data(), leaves_at_once=st.booleans())
def test_no_state_is_left(kind: str, data: st.DataObject, leaves_at_once: bool) -> None:
    message = KINDS[kind][1]
    steps = data.draw(st.lists(message | TIME | message.map(lambda said: [said]), max_size=25))
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # events come between any two commands of a message
            patch.setattr(session, "FOLLOWING", 1)
            patch.setattr(session, "SLICE_CHARS", 4)
        run(kind, steps, leaves_at_once=leaves_at_once)


def test_a_connection_is_closed_whose_last_context_was_refused() -> None:
    run("multi-stream", [{"text": "x" * 41, "context_id": "a"}], leaves_at_once=True)


def test_a_context_that_the_session_does_not_open_ends_with_its_error() -> None:
    """Fails if the session does not tell that no end follows: the client waits for `isFinal`."""
    peer = multi_stream()
    for name in "abc":
        peer.say({"text": "One two. ", "context_id": name, "flush": True})
    for end in ({"context_id": "c", "close_context": True}, {"close_socket": True}):
        peer.say(end)
    peer.settle()
    told = [message for message in peer.told if isinstance(message, dict)]
    assert [message["contextId"] for message in told if "error" in message] == ["c"]
    assert sorted(message["contextId"] for message in told if message.get("isFinal")) == ["a", "b", "c"]
    assert peer.is_closed


FLUSHED = {"text": "One two. ", "context_id": "a", "flush": True}
CLOSED = {"close_context": True, "context_id": "a"}


def multi_stream() -> Connected:
    return Connected(MultiStreamAdapter("v", PCM, *OURS))


@pytest.mark.parametrize("leaves_at_once", [True, False])
def test_two_utterances_with_one_id_are_not_mixed(leaves_at_once: bool) -> None:
    """A client cannot distinguish their audio: both have the same contextId."""
    peer = multi_stream()
    for message in (FLUSHED, CLOSED) * 3:
        peer.say(message)
        peer.take(10)
        assert len(peer.session._contexts) == 1
    if leaves_at_once:
        peer.say({"close_socket": True})
    peer.settle()
    told = [bool(message["isFinal"]) for message in peer.told if isinstance(message, dict)]
    assert told.count(True) == 3
    assert heard(peer.told) == 3 * heard(peer.told[: told.index(True)])
    assert peer.is_closed == leaves_at_once


@pytest.mark.parametrize("text", [[], [{"text": "Three. ", "context_id": "a"}], [FLUSHED, CLOSED]])
def test_an_interruption_ends_all_utterances_of_an_id(text: list[dict[str, Any]]) -> None:
    """Both the spoken one and the waiting ones; fails if the waiting ones are kept."""
    peer = multi_stream()
    for message in (FLUSHED, CLOSED, *text, CLOSED):
        peer.say(message)
    peer.settle()
    assert heard(peer.told) == 0
    assert [message["isFinal"] for message in peer.told if isinstance(message, dict)] == [True]


def test_keep_alives_extend_a_contexts_time_without_text() -> None:
    """Fails if keep-alives are ignored."""
    left, kept = multi_stream(), multi_stream()
    for peer in (left, kept):
        peer.say({"text": "One two. ", "context_id": "a"})
    for _ in range(8):
        for peer in (left, kept):
            peer.talk.turn(3, 1.0)
            peer.take(1_000)
        kept.say({"text": "", "context_id": "a"})
    assert "starved" in str(left.told)
    assert "starved" not in str(kept.told)


def test_close_socket_cancels_unflushed_text() -> None:
    peer = multi_stream()
    for message in (FLUSHED, CLOSED, {"text": "Three. ", "context_id": "a"}, {"close_socket": True}):
        peer.say(message)
    peer.settle()
    alone = multi_stream()
    alone.say(FLUSHED)
    alone.say({"close_socket": True})
    alone.settle()
    assert heard(peer.told) == heard(alone.told) > 0
    assert peer.is_closed


CONFIGURATION = {"type": "session.config", "response_format": "pcm"}
HI, FLUSH_A, LINE = {"text": "Hi."}, {"context_id": "a", "flush": True}, {"text": "word ", "voice_id": "w"}
FIRST_LINE = {
    "context_id": "a",
    "voices": ["v"],
    "inputs": [{"text": "Hi there, how are you doing today? ", "voice_id": "v"}],
}
SPEAK, STREAM = {"type": "Speak", "text": "word "}, {"type": "stream", "text": "word"}
INPUT = {"type": "input.text", "text": "word "}
# What is spoken first, what waits for it, and what ends that.
WAITS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]]]] = {
    "multi-stream": ([FLUSHED, CLOSED], {"text": "word ", "context_id": "a"}, [FLUSH_A, CLOSED]),
    "dialogue": ([FIRST_LINE], {"context_id": "a", "inputs": [LINE]}, [FLUSH_A, CLOSED]),
    "aura": ([SPEAK | HI, FLUSH], SPEAK, [FLUSH]),
    "flux": ([SPEAK | HI, FLUSH], SPEAK, [FLUSH]),
    "jambonz": ([STREAM | HI, {"type": "flush"}], STREAM, [{"type": "flush"}]),
    "vllm-omni": ([CONFIGURATION, INPUT | HI, {"type": "input.done"}], INPUT, [{"type": "input.done"}]),
}


def busy(kind: str) -> tuple[Connected, dict[str, Any], list[dict[str, Any]]]:
    """A connection whose client has sent a whole text, which is spoken; and more of `WAITS`."""
    spoken, later, ends = WAITS[kind]
    elevenlabs = {"multi-stream": MultiStreamAdapter, "dialogue": DialogueAdapter}
    adapter = elevenlabs[kind]("v", {}, Limits(), NO_DICTIONARIES) if kind in elevenlabs else KINDS[kind][0]()
    peer = Connected(adapter, CONFIG.model_copy(update={"limits": Limits()}))
    for message in spoken:
        peer.say(message)
    peer.talk.turn(3, 0.5)
    peer.take(10)
    return peer, later, ends


def asked(peer: Connected, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """What the session obeys from now on, but for what waits again."""
    commands: list[Command] = []
    obey = peer.session._dispatch

    def dispatch(command: Command) -> None:
        if isinstance(command, Append | End):
            commands.append(command)
        obey(command)

    monkeypatch.setattr(peer.session, "_dispatch", dispatch)
    return commands


@pytest.mark.parametrize("kind", WAITS)
def test_what_waits_for_speech_is_translated_in_slices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of messages may wait; the end of their text, which comes in between, stays behind the last."""
    peer, later, ends = busy(kind)
    for _ in range(2 * FOLLOWING):
        peer.say(later)
    assert not peer.session.is_reading
    commands = asked(peer, monkeypatch)
    while not peer.session.is_reading:
        peer.talk.turn(1, 0.1)
        peer.take(1)
    assert commands == []
    monkeypatch.setattr(peer.session, "clock", lambda: 0.0)  # the slice has time for all
    peer.session.go_on()
    assert [type(command) for command in commands] == [Append] * (FOLLOWING // 2)
    for message in ends:
        peer.say(message)
    assert len(commands) == FOLLOWING // 2
    while peer.session.is_reading:
        peer.session.go_on()
    assert [type(command) for command in commands] == [Append] * 2 * FOLLOWING + [End]
    assert len({command.id for command in commands}) == 1  # pyrefly: ignore[missing-attribute]


@pytest.mark.parametrize("kind", WAITS)
def test_what_waits_for_speech_is_bounded_until_it_is_spoken(kind: str) -> None:
    """Fails if costs are not counted, or not given back."""
    peer, later, _ = busy(kind)
    for _ in range(MAX_BEHIND // (MESSAGE_COST + 100)):
        peer.say(later)
    assert not refusals(peer)
    while not refusals(peer):
        peer.say(later)
    (waiting,) = peer.session._later.values()
    assert len(waiting) <= MAX_BEHIND // MESSAGE_COST
    peer.session._replies.clear()
    while not peer.session.is_reading:
        peer.talk.turn(1, 0.1)
        peer.take(1)
    while peer.session.is_reading:
        peer.session.go_on()
    assert not peer.session._later
    peer.say(later)
    assert not refusals(peer)


@pytest.mark.parametrize("kind", WAITS)
def test_what_waits_for_one_utterance_after_another_is_looked_at_once_for_each(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where the end of an utterance has all that waits translated again, to wait for the next."""
    peer, later, ends = busy(kind)
    waits = recorded(monkeypatch, peer.session, "_wait")
    texts = 20
    for number in range(texts):
        message = json.loads(json.dumps(later))
        if kind == "dialogue":
            message["inputs"][0]["new_turn"] = True
        for each in (message, *([] if kind == "dialogue" else ends)):
            peer.say(each)
        assert number or peer.session._later
    for each in ends if kind == "dialogue" else ():
        peer.say(each)
    commands = asked(peer, monkeypatch)
    peer.settle()
    assert not peer.session._later
    assert len([each for each in commands if isinstance(each, Append)]) == texts
    assert len(waits) <= 4 * texts


def refusals(peer: Connected) -> list[Failed]:
    """Those that were not told yet."""
    return [reply for reply in peer.session._replies if isinstance(reply, Failed)]


def test_generated_context_ids_differ_from_the_clients() -> None:
    """In either order, and from each other."""
    named = {"transcript": "A. ", "continue": True, "context_id": "context-1"}
    for messages in ([named, {"transcript": "B."}], [{"transcript": "B."}, named], [{"transcript": "B."}] * 2):
        adapter = CartesiaAdapter(*OURS)
        opened = [next(adapter.decode(json.dumps(message))) for message in messages]
        assert len({command.id for command in opened if isinstance(command, Open)}) == 2


@pytest.mark.parametrize("transcript", ["Four.", "x" * 41, 5])
def test_a_complete_text_is_spoken_despite_a_later_message_with_its_id(transcript: str | int) -> None:
    """The error for the message beyond the limit names no context: clients take other errors for its end."""
    peer = Connected(CartesiaAdapter(*OURS))
    peer.say({"transcript": "One two three.", "continue": False, "context_id": "a"})
    peer.say({"transcript": transcript, "continue": False, "context_id": "a"})
    peer.settle()
    told = [message for message in peer.told if isinstance(message, dict)]
    assert [message["context_id"] for message in told if message["type"] == "error"] == [None]
    assert sum(message["type"] == "chunk" for message in told) > 1
    assert [message["status_code"] for message in told if message["type"] == "done"] == [200]


def test_vllm_omnis_late_cancel_is_confirmed() -> None:
    """The session has ended the utterance before any of its messages were sent, and refuses to cancel it."""
    peer = configured()
    peer.say({"type": "input.text", "text": "One."})
    peer.say({"type": "input.done"})
    for _ in range(100):
        peer.talk.turn(3, 0.5)
        while peer.session.poll() is not None:
            pass
    assert not peer.session.is_speaking
    peer.say({"type": "input.cancel"})
    peer.settle()
    assert [message["type"] for message in peer.told if isinstance(message, dict)] == ["audio.cancelled"]


def test_vllm_omnis_text_is_bounded_while_the_writer_waits() -> None:
    """Fails if a text is kept before the session has taken it."""
    peer = configured()
    for _ in range(100):
        peer.say({"type": "input.text", "text": "x" * 40})
    assert isinstance(peer.adapter, VllmOmniAdapter)
    assert len(present(peer.adapter._utterance).text) <= CONFIG.limits.text_context_chars


def configured() -> Connected:
    """A configured connection of vLLM-Omni's."""
    peer = Connected(VllmOmniAdapter(1_000))
    peer.say(CONFIGURATION)
    peer.take(10)
    return peer


CONTINUED = {"transcript": "One two. ", "continue": True, "context_id": "a"}
# A text, its end, and what is told when it is over.
MORE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "cartesia": (CONTINUED, CONTINUED | {"transcript": "", "continue": False}, "done"),
    "multi-stream": (FLUSHED, CLOSED, '"isFinal": true'),
    "vllm-omni": ({"type": "input.text", "text": "One two. "}, {"type": "input.done"}, "session.done"),
}


@pytest.mark.parametrize("kind", MORE)
@pytest.mark.parametrize("at_once", [True, False])
def test_text_after_a_too_long_pause_is_spoken(kind: str, at_once: bool) -> None:
    """`at_once`: the text comes while the error is sent, before the context's end is."""
    text, end, over = MORE[kind]
    peer = configured() if kind == "vllm-omni" else Connected(KINDS[kind][0]())
    peer.say(text)
    for _ in range(4):
        peer.talk.turn(3, 0.5)
        peer.take(1_000)
    before = len(peer.told)
    for _ in range(4):
        peer.talk.turn(3, 0.5)
    if at_once:
        peer.meanwhile = [text, end]
    peer.settle()
    if not at_once:
        peer.say(text)
        peer.say(end)
        peer.settle()
    first, second = peer.told[:before], peer.told[before:]
    assert "starved" in str(second)
    assert heard(second) >= heard(first) > 0
    assert over in json.dumps(second[-1])


def heard(told: list[Any]) -> int:
    """Total bytes of audio."""
    payloads = [each if isinstance(each, bytes) else each.get("data") or each.get("audio") or b"" for each in told]
    return sum(len(each) if isinstance(each, bytes) else len(b64decode(each)) for each in payloads)


INTERRUPTED = {"NO_ACTIVE_SPEECH", "INTERRUPT_IN_PROGRESS"}


@examples(150)
@given(steps=st.lists(DEEPGRAM | TIME | DEEPGRAM.map(lambda said: [said]), max_size=25))
def test_flux_answers_each_interrupt_and_ends_each_started_turn(steps: list[Any]) -> None:
    steps = [step for step in steps if not str(step).count("Clear") and "x" * 41 not in str(step)]
    steps = [step for step in steps if not str(step).count("Flush")]  # a warning, too, is an answer
    peer = run("flux", steps, leaves_at_once=False, stays=True)
    if peer is None:
        return
    told = [message for message in peer.told if not isinstance(message, bytes)]
    asked = sum(str(step).count("Interrupt") for step in steps)
    answers = [m for m in told if m["type"] == "SpeechInterrupted" or m.get("code") in INTERRUPTED]
    assert len(answers) in (asked, asked + 1)  # the last flush, without text, has the same warning


@examples(150)
@given(steps=st.lists(DEEPGRAM | TIME | DEEPGRAM.map(lambda said: [said]), max_size=25))
def test_aura_answers_each_uncleared_flush(steps: list[Any]) -> None:
    steps = [step for step in steps if not str(step).count("Interrupt") and "x" * 41 not in str(step)]
    peer = run("aura", steps, leaves_at_once=False, stays=True)
    if peer is None:
        return
    told = [message["type"] for message in peer.told if not isinstance(message, bytes)]
    assert told.count("Cleared") == sum(str(step).count("Clear") for step in steps)
    flushes = sum(str(step).count("Flush") for step in steps) + 1
    assert told.count("Flushed") <= flushes
    if "Cleared" not in told:
        assert told.count("Flushed") == flushes
