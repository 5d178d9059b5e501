"""Tags in a session: what is heard, what the client is told."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

from tests.serve.test_session import Peer, peer, running, say
from tests.text.markup.test_reader import TAGS, clean

__all__ = ["peer"]  # a fixture


async def test_any_text_with_tags_is_heard_alike_in_any_split() -> None:
    """That tags leave no trace in the sound: `test_markup_page.py`."""
    draw = random.Random(5)
    async with running(limits={"text_idle_s": 60.0}) as peer:
        for number in range(20):
            pieces = (
                draw.choice(draw.choice([TAGS, ["Hello ", "there. ", "you "]])) for _ in range(draw.randrange(1, 14))
            )
            text, whole, split = "".join(pieces), f"whole {number}", f"split {number}"
            await say(peer, whole, text)
            for start, end in pairwise([0, *sorted(draw.randrange(len(text)) for _ in range(3)), len(text)]):
                peer.send("text.append", context_id=split, text=text[start:end])
            peer.send("context.end", context_id=split)
            await peer.until("context.done", split)
            assert peer.pcm(whole) == peer.pcm(split), text
            words = [peer.words(whole, "aligned"), peer.words(split, "aligned")]
            assert [[word["word"] for word in some] for some in words] == [clean(text).split()] * 2
            starts = [word["char_start"] for word in words[0]]
            assert starts == sorted(starts) == [word["char_start"] for word in words[1]]
            assert all(word["char_start"] < word["char_end"] <= len(text) for word in words[0])
        assert peer.of("error") == []


async def test_heard_text_has_the_original_spelling_without_tags(peer: Peer) -> None:
    text = 'The <sub alias="World Wide Web Consortium">W3C</sub> says <spell>AB1</spell>. <break time="1s"/>[sad] Bye.'
    peer.send("context.open", context_id="a", lead_ms=None)
    peer.send("text.append", context_id="a", text=text)
    await peer.until("context.started")
    peer.send("context.cancel", context_id="a", played_ms=0)
    cancelled = await peer.until("context.cancelled")
    assert cancelled["heard_text"] + cancelled["unheard_text"] == "The W3C says AB1. Bye."


async def test_tags_are_text_without_markup(peer: Peer) -> None:
    said = await say(peer, "none", 'a <break time="1s"/> <emotion value="sad"/>b', markup="none", timestamps="word")
    words = [word["word"] for word in peer.words("none", "aligned")]
    assert words == ["a", "<break", 'time="1s"/>', "<emotion", 'value="sad"/>b']
    assert said["audio_ms"] > (await say(peer, "auto", "a b"))["audio_ms"]


async def test_marks_are_told_with_their_times_before_their_audio(peer: Peer) -> None:
    text = '<mark name="start"/>One <mark name="two"/>two.<mark name="rest"/> <break time="1s"/>Ok<mark name="end"/>'
    done = await say(peer, "a", text)
    words = {word["word"]: word for word in peer.words("a", "aligned")}
    marks = [(mark["name"], mark["at_ms"], mark["char_start"]) for mark in peer.of("mark")]
    assert marks == [
        ("start", words["One"]["start_ms"], 0),
        ("two", words["two."]["start_ms"], text.index('<mark name="two"')),
        ("rest", words["two."]["end_ms"], text.index('<mark name="rest"')),
        ("end", words["Ok"]["end_ms"], text.index('<mark name="end"')),
    ]
    assert marks[-1][1] <= done["audio_ms"]
    assert {mark["context_id"] for mark in peer.of("mark")} == {"a"}


async def test_a_long_thought_does_not_starve() -> None:
    async with running(limits={"text_idle_s": 1.0}) as peer:
        peer.send("text.append", context_id="a", text="<think>")
        for _ in range(8):
            await asyncio.sleep(0.5)
            peer.send("text.append", context_id="a", text="so ")
            peer.take()  # as connections do
        peer.write("a", "</think>Yes.")
        assert (await peer.until("context.done"))["reason"] == "end"
