"""Markup in an LLM's text: the listener does not hear it, and the LLM does not read it again."""

from __future__ import annotations

import pytest
from pipecat.frames.frames import AggregatedTextFrame, TTSSpeakFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.tts_service import TextAggregationMode

from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.integrations.pipecat.words import PlainText
from tests.integrations.pipecat.pipeline import running, said
from tests.serve.dialects.pipecat_run import tokens
from tests.support import running_node, until

pytestmark = pytest.mark.node

MODES = [TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN]

PLAIN = "The weather is nice today. Please open the window."
MARKED = (
    '<think>The user asks. Be kind.</think><emotion value="excited"/> The <emphasis level="strong">weather</emphasis> '
    'is nice today. [laughs] <expr type="break" label="200ms"/> Please open <<ð|ə>> window.'
).replace("<<ð|ə>>", '\\{"word": "the", "pronounce": "ðə"\\}')


@pytest.mark.parametrize("mode", MODES)
async def test_it_is_not_in_the_llms_context(mode: TextAggregationMode) -> None:
    context = LLMContext()
    async with running_node(engine="espeak", lead_ms=60_000) as node:
        service = AgentTTSService(url=node.url, text_aggregation_mode=mode)
        async with running([service], after=[LLMAssistantAggregator(context)]) as pipeline:
            await pipeline.turn(*tokens(MARKED))
            assert pipeline.words == PLAIN.split()
            await until(lambda: bool(said(context)))
            await pipeline.send(TTSSpeakFrame("[sighs] Bye, <whisper>now</whisper>."))
            await until(lambda: len(said(context)) == 2)
            assert said(context) == [PLAIN, "Bye, now."]
            shown = " ".join(frame.text for frame in pipeline.down(AggregatedTextFrame))
            assert not set(shown) & set("<>[]\\{}")


async def test_an_interruption_within_it() -> None:
    context = LLMContext()
    async with running_node(engine="espeak") as node:
        service = AgentTTSService(url=node.url)
        async with running([service], after=[LLMAssistantAggregator(context)]) as pipeline:
            await pipeline.begin(*tokens(f"{MARKED} {MARKED}"))
            await until(lambda: "Please" in pipeline.words)
            await pipeline.interrupt()
            await until(lambda: bool(said(context)))
            (heard,) = said(context)
            assert f"{PLAIN} {PLAIN}".startswith(heard)


async def test_a_pronunciation_of_pipecats_escapes_its_word() -> None:
    """That it is heard and not read: `tests/serve/dialects/test_markup_of_clients.py`."""
    pronounce = AgentTTSService.pronunciation_transform_ipa({"Nice & Co": "naɪs ən kʌ"})
    assert await pronounce("Nice & Co", "*") == '<phoneme alphabet="ipa" ph="naɪs ən kʌ">Nice &amp; Co</phoneme>'


async def test_literal_text() -> None:
    context = LLMContext()
    async with running_node(lead_ms=60_000) as node:
        service = AgentTTSService(url=node.url, settings=AgentTTSService.Settings(extra={"markup": "none"}))
        async with running([service], after=[LLMAssistantAggregator(context)]) as pipeline:
            await pipeline.turn("Say [laughs] ", "aloud.")
            await until(lambda: bool(said(context)))
    assert said(context) == ["Say [laughs] aloud."]


def test_the_start_of_a_tag_waits() -> None:
    plain = PlainText()
    assert [plain.read(text) for text in ("Hi <emo", 'tion value="sad"/>', " there 5 <", " 6")] == [
        "Hi ",
        "",
        "there 5 ",
        "< 6",
    ]
