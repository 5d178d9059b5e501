"""A voice agent: speech in, an answer of a language model, speech out. Copy it and change what you like.

    agent-tts agent --config agent              this pipeline, on a node of its own
    python my_agent.py --config agent           your copy of it; all options are those of `agent-tts agent`

The user's voice holds the answer at once. Recognised words interrupt it; otherwise it goes on where it stopped. The
language model's context holds exactly what was heard.
"""

import sys

if __name__ == "__main__":
    from agent_tts.cli import main

    sys.argv[1:] = ["agent", "--set", f"agent.pipeline={__file__}", *sys.argv[1:]]
    main()  # the node loads this file

from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.aggregators.dtmf_aggregator import DTMFAggregator
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.turns.user_start import TranscriptionUserTurnStartStrategy, VADUserTurnStartStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from agent_tts.agent.barge_in import BargeIn, EchoGuard
from agent_tts.agent.call import Call
from agent_tts.agent.detectors import TurnDetector, VoiceDetector
from agent_tts.agent.one_message import OneMessageContext
from agent_tts.agent.playout import Playout
from agent_tts.agent.stt import SegmentedRecogniser
from agent_tts.agent.turn_end import TurnEnd
from agent_tts.config.settings import Agent

RECOGNITION_S = 15.0  # a turn whose speech is not recognised by then is over


def build(call: Call) -> Pipeline:
    """The pipeline of one call. Called in a thread, because it loads models: start no tasks here."""
    playout = Playout(call.turns, call.tts, call.transport.output())
    context = OneMessageContext()
    early = isinstance(call.llm, LLMService)  # which holds an early answer back
    user = turn_taking(call.settings, context, call.stt, early=early)
    pair = LLMContextAggregatorPair(context, user_params=user)
    parts = [
        call.transport.input(),
        call.stt,  # Whisper, or any other STT service of Pipecat
        EchoGuard(call.settings.echo_guard_s),
        DTMFAggregator(),  # keys of a telephone are words: "DTMF: 12#"
        BargeIn(playout, pair.assistant(), call.settings.stt.language),
        pair.user(),
        call.llm,  # any server of OpenAI's chat completions, or the built-in responder
        call.fillers,  # "one moment"
        call.tts,
        playout,
        call.transport.output(),
        pair.assistant(),
    ]
    return Pipeline([part for part in parts if part is not None])


def turn_taking(
    agent: Agent, context: OneMessageContext, stt: STTService | None, *, early: bool = False
) -> LLMUserAggregatorParams:
    """When the user's turn begins and ends."""
    if stt is None:  # without recognition a voice must not hold the answers
        return LLMUserAggregatorParams(empty_user_turn=None)
    detector = TurnDetector(agent.turn_silence_s)

    async def pause(pauses: bool) -> None:  # in which both begin: the voice may have ended
        detector.pause(pauses)
        if isinstance(stt, SegmentedRecogniser):
            await stt.pause(pauses)

    return LLMUserAggregatorParams(
        vad_analyzer=VoiceDetector(agent, on_pause=pause),
        user_turn_strategies=UserTurnStrategies(
            # BargeIn interrupts, when words are recognised.
            start=[
                VADUserTurnStartStrategy(enable_interruptions=False),
                TranscriptionUserTurnStartStrategy(enable_interruptions=False),
            ],
            stop=[TurnEnd(detector, context, agent, agent.early_answers if early else 0)],
        ),
        user_turn_stop_timeout=RECOGNITION_S,
        empty_user_turn=None,  # the answer goes on after a turn without words
    )
