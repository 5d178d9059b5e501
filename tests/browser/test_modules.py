"""The page's modules with rules of their own, run in the browser they are written for."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.browser.chromium import Page, chromium

ROOT = Path(__file__).parents[2]


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Silent."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page() -> AsyncIterator[Page]:
    """A page that can import the modules, without a node."""
    handler = functools.partial(Files, directory=str(ROOT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="files")
        thread.start()
        try:
            async with chromium() as browser, browser.page() as page:
                await page.open(f"http://127.0.0.1:{server.server_port}/tests/browser/")
                yield page
        finally:
            server.shutdown()
            thread.join()


async def module(page: Page, name: str, body: str, *arguments: Any) -> Any:
    """What a function body gives that sees a module as `m` and the arguments as `a`."""
    given = json.dumps(arguments)
    return await page.js(f"import('/web/{name}').then((m) => {{ const a = {given}; {body} }})")


async def test_tokens_join_to_the_text(page: Page) -> None:
    """Whatever the script or the white space."""
    texts = ["  Hello,  world!\n", "naïve cafés 3.14", "你好,世界。", "👩‍👩‍👧 `code` ", "", "\t", "a" * 30]
    joined = await module(page, "typing.js", "return a[0].map((text) => m.tokens(text).join(''));", texts)
    assert joined == texts
    assert await module(page, "typing.js", "return m.tokens(a[0]);", "Hello there, 你好") == [
        "Hello", " there", ",", " 你", "好"
    ]  # fmt: skip


async def test_a_transcript_counts_characters_as_the_protocol_does(page: Page) -> None:
    """Offsets are code points: an emoji is one, though it is two units of a JavaScript string."""
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


async def test_what_the_node_counts_as_heard_is_final(page: Page) -> None:
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


async def test_unspaced_script_without_times_is_heard_at_a_usual_pace(page: Page) -> None:
    """The node tells a "word" when it is complete, which for Chinese is the end of all; times that come are final."""
    body = """
      const root = document.createElement("p");
      const transcript = new m.Transcript(root);
      transcript.append("你好，世界 and more");
      const heard = () => [...root.children].filter((piece) => piece.dataset.is === "heard").length;
      transcript.play(450);
      const paced = heard();
      transcript.play(60_000);
      const all = heard();
      transcript.time([{ word: "", start_ms: 0, end_ms: 1000, char_start: 0, char_end: 5 }]);
      transcript.play(200);
      return [paced, all, heard()];
    """
    assert await module(page, "transcript.js", body) == [3, 5, 1]


async def test_better_times_replace_those_of_the_same_words(page: Page) -> None:
    """Aligned words come after estimated ones, some at a time, and the rest of the estimates stays."""
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
    """A message holds as many characters as the node allows, and no half of an emoji."""
    body = """
      const sent = [];
      const session = new m.Session({ name: "websocket", send: (message) => sent.push(message), close() {} });
      session.created = { limits: { text_message_chars: 3 } };
      session.open({}).append("ab🎉🎉cd");
      return sent.filter(({ type }) => type === "text.append").map(({ text }) => text);
    """
    assert await module(page, "protocol.js", body) == ["ab🎉", "🎉cd"]


async def test_audio_of_a_cancelled_context_is_dropped(page: Page) -> None:
    """Whatever was on its way when the listener stopped it."""
    body = """
      const transport = { name: "websocket", send() {}, close() {} };
      const session = new m.Session(transport);
      const heard = [];
      session.onaudio = (chunk) => heard.push(chunk.firstSample);
      const context = session.open({});
      transport.onmessage({ type: "context.started", context_id: context.id, context_no: 7 });
      const chunk = (firstSample) => ({ contextNo: 7, flags: 0, firstSample, pcm: new Int16Array(4) });
      transport.onaudio(chunk(0));
      context.cancel(0);
      transport.onaudio(chunk(4));
      return heard;
    """
    assert await module(page, "protocol.js", body) == [0]


async def test_snippets_carry_the_choice_and_no_key(page: Page) -> None:
    """What is set on the page is in the code; quotes of the text do not end a shell string."""
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
