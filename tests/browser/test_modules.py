"""The page's modules that hold logic, run in the browser."""

from __future__ import annotations

import functools
import http.server
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_tts.bench.statistics import serving
from tests.measure.chromium import DevTools, Page

ROOT = Path(__file__).parents[2]


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *_: object) -> None:
        """No log."""


pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: DevTools) -> AsyncIterator[Page]:
    """A page that can import the modules, without a node."""
    handler = functools.partial(Files, directory=str(ROOT))
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler), "files") as server:
        async with browser.page() as page:
            await page.open(f"http://127.0.0.1:{server.server_port}/tests/browser/")
            yield page


async def module(page: Page, name: str, body: str, *arguments: Any) -> Any:
    """The result of a function body in the page. It sees the module as `m` and the arguments as `a`."""
    given = json.dumps(arguments)
    return await page.js(f"import('/web/{name}').then((m) => {{ const a = {given}; {body} }})")


async def test_tokens_join_to_the_text(page: Page) -> None:
    """In any script and with any white space."""
    texts = ["  Hello,  world!\n", "naïve cafés 3.14", "你好,世界。", "👩‍👩‍👧 `code` ", "", "\t", "a" * 30]
    joined = await module(page, "typing.js", "return a[0].map((text) => m.tokens(text).join(''));", texts)
    assert joined == texts
    assert await module(page, "typing.js", "return m.tokens(a[0]);", "Hello there, 你好") == [
        "Hello", " there", ",", " 你", "好"
    ]  # fmt: skip


async def test_a_transcript_counts_characters_as_the_protocol_does(page: Page) -> None:
    """Offsets are code points: an emoji is one, and two units of a JavaScript string."""
    body = """
      const root = document.createElement("p");
      const transcript = new m.Transcript(root);
      for (const part of a[0]) transcript.append(part);
      transcript.time(a[1]);
      transcript.receive(a[2]);
      transcript.play(a[3]);
      const pieces = () => [...root.querySelectorAll("span")].map((e) => [e.textContent, e.dataset.is]);
      const playing = pieces();
      transcript.interrupt(null);
      return [playing, pieces(), transcript.parts()];
    """
    words = [
        {"word": "🎉🎉", "start_ms": 0, "end_ms": 200, "char_start": 0, "char_end": 2},
        {"word": "party", "start_ms": 200, "end_ms": 600, "char_start": 3, "char_end": 8},
        {"word": "on", "start_ms": 600, "end_ms": 800, "char_start": 9, "char_end": 11},
    ]
    parts = ["🎉", "🎉 par", "ty on", " now"]
    playing, stopped, split = await module(page, "transcript.js", body, parts, words, 700, 300)
    assert playing == [["🎉🎉", "heard"], ["party", "now"], ["on", "coming"], ["now", "coming"]]
    assert stopped == [["🎉🎉", "heard"], ["party", "heard"], ["on", "cut"], ["now", "unsaid"]]
    assert split == ["🎉🎉 party", " on now"]


async def test_the_heard_text_of_the_node_is_final(page: Page) -> None:
    """`heard_text` moves the cut, in characters."""
    body = """
      const transcript = new m.Transcript(document.createElement("p"));
      transcript.append("one two three");
      transcript.interrupt(null);
      transcript.interrupt("one two ");
      return transcript.parts();
    """
    assert await module(page, "transcript.js", body) == ["one two ", "three"]


async def test_a_word_of_unspaced_script_is_heard_a_character_at_a_time(page: Page) -> None:
    """Half of the time of a Chinese "word" is half of its characters."""
    body = """
      const root = document.createElement("p");
      const transcript = new m.Transcript(root);
      transcript.append("你好世界");
      transcript.time([{ word: "", start_ms: 0, end_ms: 400, char_start: 0, char_end: 4 }]);
      transcript.play(200);
      return [...root.children].filter((piece) => piece.dataset.is === "heard").length;
    """
    assert await module(page, "transcript.js", body) == 2


async def test_a_piece_is_a_word_of_its_script(page: Page) -> None:
    """Mutation: marks are characters, which tears the letter that they belong to apart."""
    body = """
      const root = document.createElement("p");
      const transcript = new m.Transcript(root);
      transcript.append("你好，GPU很 and well-done, น้ำดี");
      transcript.time([
        { word: "你", start_ms: 0, end_ms: 100, char_start: 0, char_end: 1 },
        { word: "好，", start_ms: 100, end_ms: 200, char_start: 1, char_end: 3 },
      ]);
      transcript.play(100);
      return [...root.children].map((piece) => piece.textContent + (piece.dataset.is === "heard" ? "*" : ""));
    """
    pieces = ["你*", "好，", "GPU", "很", "and", "well-done,", "น้ำ", "ดี"]
    assert await module(page, "transcript.js", body) == pieces


async def test_better_times_replace_those_of_the_same_words(page: Page) -> None:
    """Aligned words arrive in parts after the estimated ones; the remaining estimates stay."""
    body = """
      const transcript = new m.Transcript(document.createElement("p"));
      const word = (at, end_ms) => ({ word: "", start_ms: end_ms - 10, end_ms, char_start: at, char_end: at + 1 });
      transcript.append("a b c");
      transcript.time([word(0, 100), word(2, 200), word(4, 300)]);
      transcript.time([word(0, 90), word(2, 210)]);
      return transcript.words.map((word) => word.end_ms);
    """
    assert await module(page, "transcript.js", body) == [90, 210, 300]


async def test_long_texts_are_split_between_characters(page: Page) -> None:
    """A message holds at most as many characters as the node allows, and an emoji is not split."""
    body = """
      const sent = [];
      const session = new m.Session({ send: (message) => sent.push(message), close() {} });
      session.created = { limits: { text_message_chars: 3 } };
      session.open({}).append("ab🎉🎉cd");
      return sent.filter(({ type }) => type === "text.append").map(({ text }) => text);
    """
    assert await module(page, "client.js", body) == ["ab🎉", "🎉cd"]


async def test_audio_of_a_cancelled_context_is_dropped(page: Page) -> None:
    """Audio that was in flight when the listener stopped."""
    body = """
      const transport = { send() {}, close() {} };
      const session = new m.Session(transport);
      const heard = [];
      session.onaudio = (chunk) => heard.push(chunk.firstSample);
      const context = session.open({});
      transport.onmessage({ type: "context.started", context_id: context.id, context_no: 7 });
      const chunk = (firstSample) => ({ contextNo: 7, flags: 0, firstSample, data: new Uint8Array(8) });
      transport.onaudio(chunk(0));
      context.cancel(0);
      transport.onaudio(chunk(4));
      return heard;
    """
    assert await module(page, "client.js", body) == [0]


async def test_snippets_contain_the_choice_but_no_key(page: Page) -> None:
    """The page's settings are in the code, and quotes in the text do not end a shell string."""
    body = """
      const choice = { base: new URL("http://127.0.0.1:8100/"), voice: "de", language: "german", speed: 1.5,
                       text: "It's \\"fine\\"", locked: true };
      return Object.values(m.SNIPPETS).map((snippet) => snippet(choice));
    """
    python, javascript, curl = await module(page, "snippets.js", body)
    compile(python, "snippet", "exec")
    assert 'voice="de"' in python
    assert "ws://127.0.0.1:8100/v1/tts/stream" in javascript
    assert r"It'\''s" in curl
    for snippet in (python, javascript, curl):
        assert "german" in snippet
        assert "1.5" in snippet
        assert "AGENT_TTS_KEY" in snippet


# ---------------------------------------------------------------- a conversation


CONVERSATION = """
  const conversation = new m.Conversation();
  const run = (steps) => steps.forEach(([type, data]) =>
    type === "type" ? conversation.type(data) : type === "end" ? conversation.end()
      : conversation.receive(type, data ?? {}));
  const seen = () => conversation.turns.map((turn) =>
    [turn.who, ...m.pieces(turn).map(({ is, text }) => `${is}:${text}`)]);
"""
Step = tuple[str, Any]


def said(text: str, *, final: bool = True) -> Step:
    return "user-transcription", {"text": text, "final": final}


def written(*parts: str) -> list[Step]:
    return [("bot-llm-started", None), *(("bot-llm-text", {"text": part}) for part in parts), ("bot-llm-stopped", None)]


def words(text: str) -> list[Step]:
    return [("bot-tts-text", {"text": word}) for word in text.split()]


def ours(kind: str, **data: Any) -> Step:
    return "server-message", {"kind": kind, **data}


STARTED: Step = ("user-started-speaking", None)
STOPPED: Step = ("user-stopped-speaking", None)
SOUNDS: Step = ("bot-started-speaking", None)
SILENT: Step = ("bot-stopped-speaking", None)
INTERRUPTED: Step = ("bot-interrupted", None)


async def conversation(page: Page, *parts: list[Step]) -> list[Any]:
    """The turns after each part of a conversation, and the agent's state."""
    body = CONVERSATION + "return a[0].map((steps) => { run(steps); return [seen(), conversation.phase]; });"
    found: list[Any] = await module(page, "conversation.js", body, parts)
    return found


async def test_words_are_marked_as_they_are_heard(page: Page) -> None:
    """A user's words may change until they are final; the agent's text is written first and heard later."""
    hearing, asked, answering, speaking, done = await conversation(
        page,
        [STARTED, said("what is", final=False)],
        [said("What is"), said("the tie", final=False), STOPPED, said("the time?")],
        written("It is ", "**ten** ", "past nine."),
        [SOUNDS, *words("It is ten")],
        [*words("past nine."), SILENT],
    )
    assert hearing == [[["user", "interim:what is"]], "hearing"]
    assert asked == [[["user", "heard:What is the time?"]], "thinking"]
    assert answering[0][1] == ["agent", "coming:It is **ten** past nine."]
    assert speaking == [[asked[0][0], ["agent", "heard:It is **", "now:ten", "coming:** past nine."]], "speaking"]
    assert done == [[asked[0][0], ["agent", "heard:It is **ten** past nine."]], "listening"]


async def test_an_interruption_separates_heard_from_unheard_text(page: Page) -> None:
    """The agent's report of what was heard is final. A word in flight at the interruption opens no turn."""
    before, after, final, following = await conversation(
        page,
        [*written("One two three four five."), SOUNDS, *words("One two")],
        [STARTED, INTERRUPTED, *words("three"), SILENT],
        [ours("interrupted", turn=1, heard="One two three", unheard=" four five.")],
        [said("Stop."), STOPPED, *written("Fine."), SOUNDS, *words("Fine."), SILENT],
    )
    assert before[0][0] == ["agent", "heard:One ", "now:two", "coming: three four five."]
    assert after[0] == [["agent", "heard:One two ", "cut:three four five."], ["user"]]
    assert final[0][0] == ["agent", "heard:One two three ", "cut:four five."]
    assert following[0] == [final[0][0], ["user", "heard:Stop."], ["agent", "heard:Fine."]]


async def test_a_false_interruption_resumes_the_turn(page: Page) -> None:
    """A cough has no words: it leaves no turn, and the agent's turn is whole again."""
    cut, resumed = await conversation(
        page,
        [*written("One two three."), SOUNDS, *words("One"), STARTED, INTERRUPTED, SILENT, STOPPED],
        [ours("resumed", turn=1), SOUNDS, *words("two three."), SILENT],
    )
    assert cut[0] == [["agent", "heard:One ", "cut:two three."], ["user"]]
    assert resumed == [[["agent", "heard:One two three."]], "listening"]


async def test_a_held_turn_is_neither_finished_nor_cut(page: Page) -> None:
    """The agent is silent while it listens. The rest is still to come, until a message says what was not heard."""
    held, resumed, cut = await conversation(
        page,
        [*written("One two three."), SOUNDS, *words("One"), STARTED, SILENT],
        [STOPPED, ours("resumed", turn=1), SOUNDS, *words("two")],
        [STARTED, SILENT, ours("interrupted", turn=1, heard="One two", unheard="three."), INTERRUPTED, said("Stop.")],
    )
    assert held == [[["agent", "now:One", "coming: two three."], ["user"]], "hearing"]
    assert resumed == [[["agent", "heard:One ", "now:two", "coming: three."]], "speaking"]
    assert cut[0] == [["agent", "heard:One two ", "cut:three."], ["user", "heard:Stop."]]


async def test_an_interruption_in_a_pause_reopens_the_turn(page: Page) -> None:
    """The turn looked finished, then the agent reports words that were not heard."""
    paused, cut = await conversation(
        page,
        [*written("One two three."), SOUNDS, *words("One"), SILENT],
        [STARTED, INTERRUPTED, ours("interrupted", turn=1, heard="One", unheard="two three.")],
    )
    assert paused[0] == [["agent", "heard:One two three."]]
    assert cut[0] == [["agent", "heard:One ", "cut:two three."], ["user"]]


async def test_a_typed_turn_interrupts(page: Page) -> None:
    """It follows the turn that it cut, also when the agent reports later what was heard of that."""
    turns, settled = await conversation(
        page,
        [*written("One two three."), SOUNDS, *words("One"), ("type", "Enough.")],
        [
            INTERRUPTED,
            ours("interrupted", turn=1, heard="One two", unheard=" three."),
            *written("Good."),
            *words("Good."),
        ],
    )
    assert turns == [[["agent", "heard:One ", "cut:two three."], ["user", "heard:Enough."]], "thinking"]
    assert settled[0] == [["agent", "heard:One two ", "cut:three."], ["user", "heard:Enough."], ["agent", "now:Good."]]


async def test_a_pause_does_not_end_a_turn(page: Page) -> None:
    """Silence after the last text looks like the end until another word is heard. A greeting needs no text."""
    greeted, paused, on, ended = await conversation(
        page,
        [SOUNDS, *words("Hello there.")],
        [SILENT, said("Hi."), *written("One two."), SOUNDS, *words("One"), SILENT],
        words("two."),
        [("end", None)],
    )
    assert greeted[0] == [["agent", "heard:Hello ", "now:there."]]
    assert paused[0][-1] == ["agent", "heard:One two."]
    assert on[0][-1] == ["agent", "heard:One ", "now:two."]
    assert ended == [[["agent", "heard:Hello there."], ["user", "heard:Hi."], ["agent", "heard:One two."]], "listening"]


def filler(text: str, status: str = "new") -> Step:
    return "bot-output", {"text": text, "output_type": "filler", "spoken_status": status}


async def test_a_filler_stands_before_the_answer_and_is_none_of_it(page: Page) -> None:
    """Its words may be the answer's, too. Mutation: a word of it counts as heard of the answer."""
    told, answered, cut, alone = await conversation(
        page,
        [("type", "When?"), ("bot-llm-started", None), filler("One moment."), SOUNDS, *words("One")],
        [
            ("bot-llm-text", {"text": "One more moment."}),
            *words("moment."),
            filler("One moment.", "completed"),
            SILENT,
            ("bot-llm-stopped", None),
            SOUNDS,
            *words("One"),
        ],
        [INTERRUPTED, ours("interrupted", turn=1, heard="One", unheard="more moment.")],
        [("type", "Now?"), ("bot-llm-started", None), filler("Hm."), SOUNDS, *words("Hm."), INTERRUPTED],
    )
    assert told[0][1] == ["agent", "filler:One moment."]
    assert answered[0][1] == ["agent", "filler:One moment. ", "now:One", "coming: more moment."]
    assert cut[0][1] == ["agent", "filler:One moment. ", "heard:One ", "cut:more moment."]
    assert alone[0][-1] == ["agent", "filler:Hm."]


async def test_a_long_conversation_drops_its_oldest_turns(page: Page) -> None:
    """At most 60 turns are kept."""
    body = (
        CONVERSATION
        + "for (let i = 0; i < 70; i++) conversation.type(String(i)); return seen().map((turn) => turn[1]);"
    )
    kept = await module(page, "conversation.js", body)
    assert kept == [f"heard:{i}" for i in range(10, 70)]


async def test_the_first_audible_sound_of_a_turn(page: Page) -> None:
    """A quiet chunk is not audible; sound is placed in its 10 ms, counted from when it plays or from when it came."""
    body = """
      const quiet = new Int16Array(1920).fill(-104);
      const loud = new Int16Array(1920).fill(-105, 730);
      const heard = (cameAt) => {
        const first = new m.FirstSound();
        first.receive(quiet, 0, 100);
        first.receive(loud, 1920, cameAt);
        first.receive(loud, 3840, cameAt);
        const before = first.audibleAt;
        first.play(150);
        return [before, first.audibleAt];
      };
      return [m.audibleIn(quiet), m.audibleIn(loud), heard(120), heard(500)];
    """
    assert await module(page, "first_sound.js", body) == [-1, 720, [None, 260], [None, 530]]


async def test_the_bars_of_a_waterfall_add_up(page: Page) -> None:
    """Each bar spans from the previous time to its own, in order; times that do not apply have no bar."""
    body = "return a[0].map((marks) => m.waterfall(marks).map(({ name, fromMs, toMs }) => [name, fromMs, toMs]));"
    spoken = {"user_stopped": 0, "turn_end": 300, "transcript": 250, "llm_first_token": 420, "audio_first": 510}
    typed = {"user_stopped": 0, "turn_end": None, "transcript": None, "llm_first_token": 90, "audio_first": 150}
    assert await module(page, "waterfall.js", body, [{**spoken, "heard": 560}, typed, {}]) == [
        [
            ["transcript", 0, 250],
            ["turn_end", 250, 300],
            ["llm_first_token", 300, 420],
            ["audio_first", 420, 510],
            ["heard", 510, 560],
        ],
        [["llm_first_token", 0, 90], ["audio_first", 90, 150]],
        [],
    ]


async def test_heard_words_are_on_the_agents_clock(page: Page) -> None:
    """The agent's message aligns the clocks. Sound before the answer belongs to the previous turn, or is a filler. Any
    order works.
    """
    body = """
      const heard = (found) => found && found.marks.heard;
      const marks = { turn_end: 300, audio_first: 500 };
      const clock = new m.TurnClock();
      const greeting = [heard(clock.hear(10)), heard(clock.tell(0, marks, 20))];
      clock.answer();
      const spoken = [heard(clock.tell(1, marks, 1000)), heard(clock.hear(1090)), heard(clock.hear(1500))];
      clock.write(2000);
      const before = heard(clock.hear(2050));
      clock.answer();
      const written = [heard(clock.hear(2180)), heard(clock.tell(2, { turn_end: null, audio_first: 120 }, 2150))];
      clock.answer();
      const late = [heard(clock.hear(3000)), heard(clock.tell(3, marks, 3100))];
      clock.answer();
      clock.fill();
      const filled = [heard(clock.hear(4000)), heard(clock.tell(4, marks, 5000)), heard(clock.hear(5090))];
      return [greeting, before, spoken, written, late, filled];
    """
    found = await module(page, "waterfall.js", body)
    assert found == [[None, None], None, [None, 590, None], [None, 180], [None, 500], [None, None, 590]]


async def test_a_subtitle_is_one_line(page: Page) -> None:
    """The sentence being heard, or a part of it if it is long."""
    body = "return a[1].map((heard) => a[0].slice(...m.lineAt(a[0], heard)));"
    text = "First one. Second one! " + "word " * 30
    first, second, begun, later = await module(page, "subtitle.js", body, text, [0, 12, 24, 150])
    assert (first, second) == ("First one. ", "Second one! ")
    assert begun.startswith("word")
    assert len(begun) <= 90
    assert later.startswith("word")
    assert later != begun


async def test_every_microphone_error_has_a_message(page: Page) -> None:
    """The meaning of the browser's error and a remedy; unknown errors are shown by name."""
    names = ["NotAllowedError", "NotFoundError", "NotReadableError", "StrangeError"]
    body = "return a[0].map((name) => m.problemOf(name)).concat(m.INSECURE);"
    problems = await module(page, "microphone.js", body, names)
    assert len({problem["title"] for problem in problems}) >= 4
    assert "StrangeError" in problems[3]["body"]
    assert "localhost" in problems[4]["title"]


async def test_the_figures_of_a_node_are_of_the_time_between_two_looks(page: Page) -> None:
    """Counters that fell, as of a node that was started again, count from 0."""

    def look(fast: int, slow: int, underrun: float, characters: int) -> str:
        return f"""
# HELP agent_tts_ttfa_seconds First text to first audio.
agent_tts_ttfa_seconds_bucket{{carrier="http",le="0.05"}} {fast}
agent_tts_ttfa_seconds_bucket{{carrier="http",le="0.1"}} {fast + slow}
agent_tts_ttfa_seconds_bucket{{carrier="http",le="+Inf"}} {fast + slow}
agent_tts_ttfa_seconds_bucket{{carrier="rtc",le="0.05"}} 0
agent_tts_ttfa_seconds_bucket{{carrier="rtc",le="0.1"}} 0
agent_tts_ttfa_seconds_bucket{{carrier="rtc",le="+Inf"}} 0
agent_tts_underrun_seconds_total {underrun}
agent_tts_slots 8
agent_tts_slots_used 3
agent_tts_engine_up{{engine="0"}} 1
agent_tts_engine_up{{engine="1"}} 0
agent_tts_engine_slots{{engine="0"}} 8
agent_tts_engine_starts_total{{engine="1"}} 2
agent_tts_key_sessions{{key="shop"}} 4
agent_tts_key_characters_total{{key="shop"}} {characters}
agent_tts_key_refused_total{{code="at_capacity",key="shop"}} 1
agent_tts_key_refused_total{{code="rate_limited",key="shop"}} 2
"""

    body = "return m.figuresOf(m.parse(a[0]), m.parse(a[1]));"
    found = await module(page, "node_view.js", body, look(100, 0, 7.0, 10), look(106, 4, 1.5, 1_000))
    assert (found["streams"], found["slots"], found["underrunS"]) == (3, 8, 1.5)
    assert (found["firstAudioMs"], found["slowAudioMs"]) == (50, 100)
    assert found["engines"][1] == {"number": "1", "up": False, "used": 0, "slots": 0, "waiting": 0, "starts": 2}
    assert found["keys"] == [{"name": "shop", "sessions": 4, "characters": 1_000, "seconds": 0, "refused": 3}]
    assert (await module(page, "node_view.js", body, look(1, 0, 0, 0), look(1, 0, 0, 0)))["firstAudioMs"] is None


async def test_the_wait_for_text_ends_with_the_words_that_the_speech_begins_with(page: Page) -> None:
    """A word is whole when what follows it has begun; what comes after the first sound does not count."""
    body = """
      return a[0].map(([told, chunks]) => {
        const first = new m.FirstSound();
        a[1].forEach(([chars, at]) => first.write(chars, at));
        if (told !== null) first.tell(told);
        if (chunks) first.receive(new Int16Array(1), 0, 500);
        first.write(40, 600);
        first.tell(40);
        return first.waitMs;
      });
    """
    written = [[2, 100], [9, 140], [10, 180], [12, 220]]
    cases = [[9, False], [10, True], [2, True], [12, False], [None, True]]
    assert await module(page, "first_sound.js", body, cases, written) == [80, 120, 40, 120, 0]
