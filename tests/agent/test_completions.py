"""Language models' servers as they are: refusals, faults, silence, and the shapes of their streams, over a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams
from pipecat.tests.utils import run_test

from agent_tts.agent.completions import ChatCompletions, CutShort, FunctionCall, FunctionCalls
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.wording import APOLOGIES, phrase
from agent_tts.config.settings import AgentLlm
from tests.agent.llm_server import MODEL, LlmServer, Scripted, call, running_llm, status, stream
from tests.support import logged, typed

SORRY = "Sorry."
HELLO = stream({"role": "assistant", "content": ""}, {"content": "Hello "}, {"content": "there."})


@asynccontextmanager
async def asked(
    *answers: Scripted, for_client: bool = False, url: str | None = None, **llm: Any
) -> AsyncIterator[tuple[list[Frame], LlmServer, LanguageModel]]:
    """The frames of one answer, upstream ones included, and the server."""
    async with running_llm(*answers) as server:
        model = LanguageModel(AgentLlm(base_url=url or server.url, model=MODEL, look_s=30, **llm))
        yield await ask(model, for_client=for_client), server, model


async def ask(model: LanguageModel, *, for_client: bool = False) -> list[Frame]:
    service = typed(ChatCompletions, await model.service(for_client=for_client))
    service.apology = lambda: SORRY
    ran: list[Any] = []

    async def run(params: FunctionCallParams) -> None:
        ran.append((params.function_name, params.arguments))
        await params.result_callback(None)

    service.register_function(None, run)
    context = LLMContextFrame(LLMContext([{"role": "user", "content": "Hello?"}]))
    down, up = await run_test(service, frames_to_send=[context])
    assert any(isinstance(frame, LLMFullResponseEndFrame) for frame in down)
    calls = [FunctionCalls([FunctionCall("", name, 0, str(given)) for name, given in ran], after_text=False)]
    return [*down, *(up or ()), *(calls if ran else ())]


def said(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, LLMTextFrame))


def told(frames: list[Frame]) -> str:
    return " ".join(frame.error for frame in frames if isinstance(frame, ErrorFrame))


def called(frames: list[Frame]) -> list[tuple[str, str]]:
    return [(each.name, each.arguments) for frame in frames if isinstance(frame, FunctionCalls) for each in frame.calls]


# ------------------------------------------------------------ faults

FAULTS: list[tuple[Scripted, int, str]] = [
    # What the server does, how often it is asked, and what is said of it.
    (status(500), 2, "HTTP 500"),
    (status(503, **{"retry-after": "0"}), 2, "HTTP 503"),
    (status(503, **{"retry-after": "60"}), 1, "HTTP 503"),
    (status(503, **{"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}), 1, "HTTP 503"),
    (status(429), 2, "too often"),
    (status(401), 1, "key"),
    (status(403), 1, "key"),
    (status(404), 1, "does not know this model"),
    (status(400), 1, "HTTP 400"),
    (stream({"role": "assistant", "content": ""}), 2, "empty answer"),
    (stream({"content": " \n"}), 2, "empty answer"),
    (stream({"content": 5}), 2, "empty answer"),
    (stream(finish=None), 2, "empty answer"),
    (stream(finish="error"), 2, "no answer"),
    (stream({"role": "assistant"}, 12.0, {"content": "Late."}), 1, "silent"),
]


@pytest.mark.parametrize(("answer", "times", "why"), FAULTS)
async def test_a_fault_before_the_first_word_is_met_once_more_where_that_may_help_then_the_caller_hears_an_apology(
    answer: Scripted, times: int, why: str
) -> None:
    """Nobody but the log gets the server's words."""
    with logged("WARNING") as log:
        async with asked(answer) as (frames, server, _):
            assert said(frames) == SORRY
            assert why in told(frames)
            assert "secret" not in told(frames)
            assert len(server.requests) == times
    assert any(server.url in line for line in log)


@pytest.mark.parametrize("fault", [status(500), status(429), stream(finish=None), stream(finish="error")])
async def test_a_fault_that_passes_is_not_heard(fault: Scripted) -> None:
    async with asked(fault, HELLO) as (frames, _, _):
        assert (said(frames), told(frames)) == ("Hello there.", "")


async def test_a_server_that_has_gone_is_told() -> None:
    async with running_llm(HELLO) as server:
        model = LanguageModel(AgentLlm(base_url=server.url))
        await model.status()
    frames = await ask(model)
    assert said(frames) == SORRY
    assert "cannot be reached" in told(frames)


async def test_what_was_said_before_a_fault_stays_and_is_not_said_again() -> None:
    for end in (
        stream({"content": "Hello"}, 12.0, {"content": " there."}),
        stream({"content": "Hello"}, finish="error"),
    ):
        async with asked(end, HELLO) as (frames, server, _):
            assert said(frames) == f"Hello {SORRY}"
            assert len(server.requests) == 1


async def test_a_model_that_thinks_aloud_is_not_silent_and_a_server_need_not_end_its_stream() -> None:
    thoughts = [piece for _ in range(4) for piece in ({"reasoning_content": "Hm."}, 4.0)]
    async with asked(stream(*thoughts, {"content": "Yes."})) as (frames, _, _):
        assert (said(frames), told(frames)) == ("Yes.", "")
    async with asked(stream({"content": "Yes."}, ends=False)) as (frames, _, _):
        assert (said(frames), told(frames)) == ("Yes.", "")


async def test_texts_in_other_places_are_said() -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "thinking", "thinking": []}]
    async with asked(stream({"content": parts}, {"refusal": " I cannot."})) as (frames, _, _):
        assert said(frames) == "One I cannot."


@pytest.mark.parametrize("finish", ["content_filter", "length"])
async def test_an_answer_without_a_word_that_was_cut_is_an_apology_or_incomplete(finish: str) -> None:
    async with asked(stream(finish=finish)) as (frames, _, _):
        assert said(frames) == SORRY
    async with asked(stream(finish=finish), for_client=True) as (frames, _, _):
        assert told(frames) == ""
        assert [frame.reason is not None for frame in frames if isinstance(frame, CutShort)] == [True]


# ------------------------------------------------------------ the longest answer


def limits(server: LlmServer) -> list[str | None]:
    """The name of the limit in each request."""
    return [next((name for name in body if name.endswith("_tokens")), None) for body in server.bodies]


MAX, NEW = "max_tokens", "max_completion_tokens"
REFUSED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


@pytest.mark.parametrize("refusal", [status(400, REFUSED), status(422, "max_tokens: extra inputs are not permitted")])
async def test_a_refused_name_of_the_longest_answer_is_replaced_once_for_all_calls(refusal: Scripted) -> None:
    async with asked(refusal, HELLO) as (frames, server, model):
        assert said(frames) == "Hello there."
        assert said(await ask(model)) == "Hello there."
        assert limits(server) == [MAX, NEW, NEW]
        assert server.bodies[1][NEW] == 400


async def test_a_server_may_take_neither_name() -> None:
    async with asked(status(400, REFUSED), status(400, f"{NEW}: unknown field"), HELLO) as (frames, server, _):
        assert said(frames) == "Hello there."
        assert limits(server) == [MAX, NEW, None]


@pytest.mark.parametrize("piece", [{"content": "so "}, {"reasoning_content": "so "}])
@pytest.mark.parametrize("setting", ["auto", "none"])
async def test_an_answer_of_a_server_that_takes_no_limit_is_cut_at_it(setting: str, piece: dict[str, Any]) -> None:
    refusals = [status(400, REFUSED), status(400, f"{NEW}: unknown field")] if setting == "auto" else []
    endless = stream(*[piece] * 50, 9.0)  # seconds of silence: whoever reads on is late
    fields: dict[str, Any] = {"token_limit": setting, "max_tokens": 7, "token_s": 8.0}
    async with asked(*refusals, endless, for_client=True, **fields) as (frames, _, _):
        assert told(frames) == ""
        assert said(frames) == "so " * (7 if "content" in piece else 0)
        assert [frame.reason for frame in frames if isinstance(frame, CutShort)] == ["max_output_tokens"]
    async with asked(stream(*[{"content": "so "}] * 9)) as (frames, _, _):  # that a server takes is the server's
        assert said(frames) == "so " * 9


TOO_LONG = "This model's maximum context length is 100 tokens, max_tokens is 400."


@pytest.mark.parametrize(
    ("refusal", "setting", "sent"),
    [(TOO_LONG, "auto", MAX), (REFUSED, MAX, MAX), (REFUSED, NEW, NEW), (REFUSED, "none", None)],
)
async def test_a_set_name_stays_and_a_request_that_is_too_long_refuses_none(
    refusal: str, setting: str, sent: str | None
) -> None:
    async with asked(status(400, refusal), token_limit=setting) as (frames, server, _):
        assert said(frames) == SORRY
        assert limits(server) == [sent]


# ------------------------------------------------------------ calls

DOOR = '{"door": "front"}'
OPEN, SHUT, SHUT_NONE = ("open", DOOR), ("shut", DOOR), ("shut", "{}")
CALLS: list[tuple[list[dict[str, Any]], list[tuple[str, str]]]] = [
    # Deltas, the calls.
    ([call(0, "open", DOOR, "a")], [OPEN]),
    ([call(1, "open", DOOR, "a")], [OPEN]),
    ([call(1, "open", DOOR, "a"), call(2, "shut", DOOR, "b")], [OPEN, SHUT]),
    ([call(0, "open", DOOR, "a"), call(0, "shut", DOOR, "b")], [OPEN, SHUT]),
    ([call(0, "open", DOOR, "a"), call(0, "open", DOOR, "b")], [OPEN, OPEN]),
    ([call(0, "open", DOOR), call(0, "shut", DOOR)], [OPEN, SHUT]),
    ([call(None, "open", DOOR), call(None, "shut", DOOR)], [OPEN, SHUT]),
    ([{"tool_calls": call(0, "open", DOOR)["tool_calls"] + call(0, "shut", "{}")["tool_calls"]}], [OPEN, SHUT_NONE]),
    ([call(0, "open", '{"door":', "a"), call(0, None, ' "front"}')], [OPEN]),
    ([call(0, "open", '{"door":', "a"), call(0, None, ' "front"}', "a")], [OPEN]),
    ([call(0, "open", '{"door":', "a"), call(None, None, ' "front"}')], [OPEN]),
    ([call(0, "open", '{"door":', "a"), call(0, "open", ' "front"}', "a")], [OPEN]),
    ([call(0, "op", None, "a"), call(0, "en", None), call(0, None, DOOR)], [OPEN]),
    ([call(0, "open", "", "a"), call(1, "shut", "", "b"), call(0, None, DOOR), call(1, None, "{}")], [OPEN, SHUT_NONE]),
    ([call(0, "open", DOOR, "a"), call(0, "open", DOOR, "a")], [OPEN]),
    ([call(0, "open", {"door": "front"}, "a")], [OPEN]),
    ([call(0, "open", None, "a")], [("open", "{}")]),
    ([{"content": "I open it."} | call(0, "open", DOOR, "a")], [OPEN]),
    ([{"content": "I "}, {"content": "do."}, call(0, "open", DOOR)], [OPEN]),
    ([call(0, "open", DOOR), {"content": "Done."}], [OPEN]),
]


@pytest.mark.parametrize(("deltas", "calls"), CALLS)
async def test_each_call_comes_once_and_the_text_beside_it_is_spoken(
    deltas: list[dict[str, Any]], calls: list[tuple[str, str]]
) -> None:
    """In the agent, where functions run, and for a client."""
    text = "".join(delta.get("content", "") for delta in deltas)
    async with asked(stream(*deltas, finish="tool_calls")) as (frames, _, model):
        assert said(frames) == text
        assert called(frames) == [(name, str(json.loads(given))) for name, given in calls]
        frames = await ask(model, for_client=True)
        assert said(frames) == text
        assert [(name, json.loads(given or "{}")) for name, given in called(frames)] == [
            (name, json.loads(given)) for name, given in calls
        ]
        [frame] = [frame for frame in frames if isinstance(frame, FunctionCalls)]
        assert len({each.id for each in frame.calls}) == len(calls)
        assert frame.after_text is bool(text)


@pytest.mark.parametrize("given", ["{bad", "[1]", '"x"', "null"])
async def test_malformed_arguments_reach_a_client_as_they_are_and_fail_an_answer_of_the_agent(given: str) -> None:
    async with asked(stream(call(0, "open", given, "a"), finish="tool_calls")) as (frames, _, model):
        assert said(frames) == SORRY
        assert not called(frames)
        assert called(await ask(model, for_client=True)) == [("open", given)]


async def test_a_call_that_was_cut_is_none_and_a_stream_without_its_reason_is_cut() -> None:
    for finish in (None, "length"):
        piece = stream({"content": "Well."}, call(0, "open", '{"door": "fr', "a"), finish=finish)
        async with asked(piece) as (frames, _, model):
            assert (said(frames), called(frames)) == ("Well.", [])
            frames = await ask(model, for_client=True)
            assert (said(frames), called(frames)) == ("Well.", [])
            assert len([frame for frame in frames if isinstance(frame, CutShort)]) == 1


async def test_an_answer_has_so_many_calls_at_most() -> None:
    async with asked(stream(*(call(at, "open", "{}") for at in range(65)))) as (frames, _, _):
        assert said(frames) == SORRY


# ------------------------------------------------------------ which model


@pytest.mark.parametrize("listed", [404, 405, 403, 500, ("*",), ("other", f"{MODEL[:2]}*"), (f"{MODEL}:latest",), ()])
async def test_a_named_model_is_used_whatever_the_server_lists(listed: tuple[str, ...] | int) -> None:
    async with running_llm(HELLO, listed=listed) as server:
        with logged("WARNING") as log:
            model = LanguageModel(AgentLlm(base_url=server.url, model=MODEL, look_s=30))
            assert (await model.status()).kind == "openai"
            assert said(await ask(model)) == "Hello there."
        assert isinstance(listed, tuple) or f"HTTP {listed}" in log[0]


@pytest.mark.parametrize(
    ("url", "listed", "model", "why"),
    [
        ("{url}", 401, MODEL, "does not accept the key"),
        ("{url}", 404, None, "most end in /v1"),
        ("{url}", ("openai/*",), None, "--llm-model"),
        ("{url}", ("owl",), MODEL, "it has owl"),
        ("http://127.0.0.1:9/v1", (), MODEL, "o language model answers"),
        ("127.0.0.1:9", (), MODEL, "o language model answers"),
        ("http://", (), MODEL, "o language model answers"),
    ],
)
async def test_a_wrong_address_or_name_is_told_in_the_terminal_once(
    url: str, listed: tuple[str, ...] | int, model: str | None, why: str
) -> None:
    async with running_llm(listed=listed) as server:
        with logged("WARNING") as log:
            llm = LanguageModel(AgentLlm(base_url=url.format(url=server.url), model=model, look_s=30))
            await llm.start()
            assert (await llm.status()).kind == "builtin"
            await llm.status()
            await llm.close()
    assert len(log) == 1
    assert why in log[0]


# ------------------------------------------------------------ the apology


@pytest.mark.parametrize(
    ("languages", "said_in"),
    [((), "en"), (("de",), "de"), (("pt-br",), "pt"), (("cmn",), "zh"), (("en-us", "de"), "en"), (("ja-JP",), "ja")],
)
def test_the_apology_is_in_the_voices_language(languages: tuple[str, ...], said_in: str) -> None:
    assert phrase(APOLOGIES, {}, languages) == APOLOGIES[said_in]


def test_an_apology_of_ones_own_and_one_for_a_language_without() -> None:
    own = {"sv": "Förlåt.", "pt-BR": "Desculpa."}
    assert phrase(APOLOGIES, own, ("sv",)) == "Förlåt."
    assert phrase(APOLOGIES, own, ("pt-br",)) == "Desculpa."
    assert phrase(APOLOGIES, own, ("pt-pt",)) == APOLOGIES["pt"]
    assert phrase(APOLOGIES, own, ("fi",)) == APOLOGIES["en"]
    assert phrase(APOLOGIES, {"en": ""}, ("en",)) == ""
