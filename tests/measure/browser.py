"""Measure an agent in Chromium: spoken questions, interruptions by voice. `python -m tests.measure.browser --help`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from agent_tts.bench import report
from agent_tts.bench.node import cpu_s, own_node
from agent_tts.bench.statistics import percentiles
from agent_tts.cli.bench import Json, Outputs, OwnNodeOptions
from agent_tts.cli.bench_measurements import checkpoint, run
from agent_tts.cli.options import command
from agent_tts.errors import SpeechError
from tests.measure.chat import running_chat
from tests.measure.chromium import DevTools, Page, PageError, chromium, find_chromium
from tests.measure.microphone import recording, sentences
from tests.measure.timeline import Answer, Interruption, Note, answers, interruptions

EAR = Path(__file__).with_name("ear.js")
READY_S = 60.0  # until the agent listens: it may load weights first
CALL_S = 20.0
TAKE_S = 2.0  # between two reads of the page's notes
CLOCK_TRIES = 20
THINK_S = 0.3  # of the language model before its first word
ESPEAK = OwnNodeOptions()
TIMES = {
    "voice_to_unheard_ms": "voice at the microphone to answer unheard",
    "told_to_silence_ms": "page told of the voice to last sound arriving",
    "first_word_to_heard_ms": "LLM's first word to first sound heard",
    "asked_to_heard_ms": f"end of the question to first sound heard (LLM thinks for {1_000 * THINK_S:g})",
}


@dataclass(slots=True)
class Heard:
    """Measurements of some calls."""

    interruptions: list[Interruption] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)  # % of a core, of each call
    buffered_ms: list[float] = field(default_factory=list)  # mean time in the browser's jitter buffer, of each call

    def figures(self) -> dict[str, Any]:
        """The figures as JSON."""
        cut, said = self.interruptions, self.answers
        times = {
            "voice_to_unheard_ms": [each.unheard - each.voice for each in cut],
            "told_to_silence_ms": [each.silent - each.told for each in cut],
            "first_word_to_heard_ms": [each.heard - each.first_word for each in said],
            "asked_to_heard_ms": [each.heard - each.asked for each in said],
        }
        names = self.cpu[0].keys() if self.cpu else ()
        return {
            "calls": len(self.cpu),
            "interruptions": len(cut),
            "answers": len(said),
            **{name: percentiles(values, 50, 95) for name, values in times.items()},
            "jitter_buffer_ms": round(sum(self.buffered_ms) / max(1, len(self.buffered_ms)), 1),
            "cpu_percent_per_call": {n: round(sum(each[n] for each in self.cpu) / len(self.cpu), 1) for n in names},
        }


async def talk(
    url: str,
    spoken: Sequence[bytes],
    folder: Path,
    first_words: Callable[[], list[float]],
    pids: Mapping[str, int],
    *,
    calls: int,
    turns: int,
    path: str | None = None,
) -> dict[str, Any]:
    """Make `calls` calls to the agent, one after the other, and interrupt `turns` answers in each by voice.

    Args:
        url: of a node with an agent that recognises speech.
        spoken: sentences of the user: pcm_s16le, mono, 24 kHz.
        folder: for the microphone's file; the caller removes it.
        first_words: when the language model sent the first word of each answer so far, s of the monotonic clock.
        pids: processes whose share of the CPU is reported, by name.
        path: of the browser; None takes the first that is found.

    Raises:
        SettingsError: there is no browser.
        SpeechError: no call was established, or no answer was heard in it.
    """
    heard = Heard()
    for number in range(calls):
        sound, seconds = recording(spoken, turns, seed=number)
        file = folder / f"microphone-{number}.wav"
        await asyncio.to_thread(file.write_bytes, sound)
        flags = (
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-audio-capture={file}%noloop",
        )
        try:
            async with chromium(*flags, path=path) as browser:
                await _call(browser, url, seconds, first_words, pids, heard)
        except TimeoutError as error:
            raise SpeechError(
                f"the agent's page could not make a call: {str(error) or 'the browser does not answer'}"
            ) from None
        except PageError as error:
            raise SpeechError(f"the page of the agent failed: {error}") from None
    if not heard.answers or not heard.interruptions:
        raise SpeechError("no answer of the agent was both heard and interrupted: try `agent-tts agent` and its page")
    return heard.figures()


async def _call(
    browser: DevTools,
    url: str,
    seconds: float,
    first_words: Callable[[], list[float]],
    pids: Mapping[str, int],
    heard: Heard,
) -> None:
    async with browser.page() as page:
        await page.allow("microphone", "granted")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=EAR.read_text(encoding="utf-8"))
        await page.open(f"{url}/#talk")
        await page.until("!document.querySelector('#call')?.disabled", READY_S)
        await page.click("#call")
        await page.until("agentTts.call.state === 'talking'", CALL_S)
        await page.js("ear.listen()")
        begin, before = len(first_words()), cpu_used(pids)
        ends_at = (began := time.monotonic()) + seconds
        notes: list[Note] = []
        while (left_s := ends_at - time.monotonic()) > 0:
            await asyncio.sleep(min(TAKE_S, left_s))
            notes += [(what, at) for what, at in await page.js("ear.take()")]
        elapsed_s, after = time.monotonic() - began, cpu_used(pids)
        ahead_ms = await _ahead_ms(page)
        heard.buffered_ms.append(await page.js("ear.buffered()"))
        await page.click("#call")
        await page.until("agentTts.call.state === 'idle'", CALL_S)
    heard.cpu.append({name: 100 * (after[name] - before[name]) / elapsed_s for name in before.keys() & after.keys()})
    heard.interruptions += interruptions(notes)
    heard.answers += answers(notes, [at * 1_000 + ahead_ms for at in first_words()[begin:]])


def cpu_used(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU time of processes by name, s; without those that /proc does not show."""
    return {name: used for name, pid in pids.items() if (used := cpu_s(pid)) is not None}


async def _ahead_ms(page: Page) -> float:
    """Offset of the page's clock to the monotonic one; accurate to half of the fastest query's time."""
    found = []
    for _ in range(CLOCK_TRIES):
        asked = time.monotonic()
        now_ms = await page.js("performance.now()")
        answered = time.monotonic()
        found.append((answered - asked, now_ms - (asked + answered) / 2 * 1_000))
    return float(min(found)[1])


# ---------------------------------------------------------------- the command


@command
def main(
    browser: Annotated[str | None, typer.Argument(help="The browser; default: the Chromium on PATH.")] = None,
    node: OwnNodeOptions = ESPEAK,
    calls: Annotated[int, typer.Option(min=1, max=1_000, help="One after the other.")] = 3,
    turns: Annotated[int, typer.Option(min=1, max=100, help="Answers that are interrupted in each call.")] = 10,
    json: Json = None,
) -> None:
    """Time until an agent falls silent, and until it is heard, in headless Chromium with a node started here.

    The microphone speaks with espeak-ng's voice. Voice activity and the end of turns are the agent's own; recognition
    is scripted, so it needs no weights and takes no time (--set agent.stt.kind=whisper includes it).

    "voice to unheard" is from the start of the user's voice at the microphone to the last sound that the page plays;
    "told to silence" is from the page's message about the voice to the last sound that arrives. Echo cancellation is
    off: the microphone hears no loudspeaker.
    """
    outputs, path = Outputs(json=json), find_chromium(browser)
    found = run(_measure(node, path, calls, turns))
    rows = [(name, *found[key].values()) for key, name in TIMES.items()]
    rows.append(("mean time in the browser's jitter buffer", found["jitter_buffer_ms"], None))
    rows += [(f"% of a core a call: {name}", share, None) for name, share in found["cpu_percent_per_call"].items()]
    title = (
        f"agent in Chromium: {found['answers']} spoken questions answered, {found['interruptions']} answers interrupted"
    )
    report.table(title, ("ms", "p50", "p95"), rows)
    about = {"engine": node.engine_name, "browser": Path(path).name, "think_s": THINK_S}
    outputs.write("browser", about, [found])


async def _measure(options: OwnNodeOptions, path: str, calls: int, turns: int) -> dict[str, Any]:
    spoken = await sentences()
    first_words: list[float] = []
    with checkpoint(options) as model, TemporaryDirectory(prefix="agent-tts-") as folder:
        async with running_chat(think_s=THINK_S, on_first=lambda: first_words.append(time.monotonic())) as chat:
            settings: dict[str, object] = {
                "slots": 2,  # an answer begins while the one before it is being stopped
                "agent__stt__kind": "scripted",
                "agent__llm__base_url": chat,
                **(model.settings if model else {}),
                **options.settings,
            }
            async with own_node("agent", **settings) as node:
                where = Path(folder)
                return await talk(
                    node.url, spoken, where, lambda: first_words, node.pids, calls=calls, turns=turns, path=path
                )


if __name__ == "__main__":
    typer.run(main)
