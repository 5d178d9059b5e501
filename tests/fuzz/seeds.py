"""Fuzzing seeds: real client messages of every WebSocket dialect, by path, and real inputs of all other parsers."""

from __future__ import annotations

import json
from typing import Any

from agent_tts.ipc.wire import encode
from agent_tts.messages import (
    Append,
    Audio,
    Credit,
    EngineCommand,
    EngineEvent,
    EnginePing,
    EnginePong,
    Finished,
    Open,
    Words,
)
from agent_tts.options import EmbeddedVoice, EngineOptions
from tests.serve.routes.test_multipart import GOOD, TYPE
from tests.serve.transports.test_sdp import CHROMIUM

T = "\x01"  # the engine steps; see `targets`


def _lines(*messages: str | dict[str, Any]) -> str:
    return "\n".join(message if isinstance(message, str) else json.dumps(message) for message in messages)


def _frames(*messages: EngineCommand | EngineEvent) -> bytes:
    return b"".join(encode(message) for message in messages)


_CARTESIA = {
    "model_id": "sonic-2",
    "voice": {"mode": "id", "id": "tone-660"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
    "language": "en",
    "context_id": "c",
    "add_timestamps": True,
}
_ELEVENLABS: list[str | dict[str, Any]] = [
    {"text": " ", "voice_settings": {"stability": 0.5, "speed": 1.0}, "context_id": "e", "xi_api_key": "k"},
    *({"text": "Hello there. ", "context_id": "e", "try_trigger_generation": True}, T),
    *({"context_id": "e", "flush": True}, T * 2, {"text": "", "context_id": "e"}),
    *({"context_id": "e", "close_context": True}, T * 3, {"text": ""}, {"close_socket": True}),
]
_DIALOGUE: list[str | dict[str, Any]] = [
    {"voices": ["tone-660", "tone-440"], "context_id": "d", "xi_api_key": "k"},
    *({"inputs": [{"text": "Hello ", "voice_id": "tone-660"}], "context_id": "d"}, T),
    *({"inputs": [{"text": "[laughs] there.", "voice_id": "tone-440", "new_turn": True}], "context_id": "d"}, T * 2),
    *({"inputs": [], "context_id": "d", "flush": True}, {"context_id": "d", "close_context": True}, T * 3),
    {"close_socket": True},
]
TALK = {
    "/v1/tts/stream": [
        _lines(
            {"type": "session.update", "session": {"voice": "tone-660", "output": {"framing": "base64"}}},
            {"type": "session.update", "session": {"lexicon": {"Hello": "hi", "there": {"ipa": "x", "alias": "y"}}}},
            {"type": "context.open", "context_id": "a", "lead_ms": None, "sampling": {"top_k": 1}},
            {"type": "text.append", "context_id": "a", "text": "Hello you. "},
            {"type": "text.append", "context_id": "a", "text": '<s>[sad] A <sub alias="b">c</sub><break time="'},
            {"type": "text.append", "context_id": "a", "text": '80ms"/> <mark name="m"/>d <spell>e1</spell></s>'},
            {"type": "context.flush", "context_id": "a", "flush_id": "f"},
            T * 3,
            {"type": "playback.ack", "context_id": "a", "played_ms": 80},
            {"type": "context.end", "context_id": "a"},
            {"type": "ping", "t": 1},
            T * 3,
            {"type": "context.cancel", "context_id": "*", "played_ms": 80.5},
            {"type": "session.close"},
        )
    ],
    "/tts/websocket": [
        _lines(
            *({**_CARTESIA, "transcript": "Hello ", "continue": True}, T * 3),
            *({**_CARTESIA, "transcript": "there.", "continue": True, "flush": True}, T * 3),
            *({"context_id": "c", "cancel": True}, T * 2),
            {**_CARTESIA, "transcript": "", "continue": False, "context_id": "d"},
            T * 3,
        )
    ],
    "/v2/speak": [
        _lines(
            "\x02model=flux-aurora-en&encoding=linear16&sample_rate=24000",
            *({"type": "Configure", "speed": 1.1}, {"type": "Speak", "text": "Hello "}),
            *({"type": "Speak", "text": "there."}, T * 3),
            *({"type": "Interrupt", "playback_offset": {"audio_played_ms": 80}}, T * 2, {"type": "Flush"}, T * 3),
            {"type": "KeepAlive"},
            {"type": "Close"},
        )
    ],
    "/v1/speak": [
        _lines(
            "\x02model=aura-2-thalia-en&encoding=linear16&sample_rate=24000",
            *({"type": "Speak", "text": "Hello there. "}, {"type": "Flush"}, T * 3, {"type": "Speak", "text": "More."}),
            *({"type": "Clear"}, T * 2, {"type": "KeepAlive"}, {"type": "Close"}),
        )
    ],
    "/v1/jambonz": [
        _lines(
            "\x02voice=tone-660&language=en-US&sampleRate=8000",
            *({"type": "stream", "text": "Hello there."}, {"type": "flush"}, T * 3),
            *({"type": "stream", "text": "More, that is"}, {"type": "stream", "text": "cut off."}, T * 2),
            *({"type": "stop"}, T * 2, {"type": "keepalive"}),
        )
    ],
    "/v1/text-to-speech/{voice_id}/stream-input": [_lines("\x02output_format=pcm_24000", *_ELEVENLABS)],
    "/v1/text-to-speech/{voice_id}/multi-stream-input": [_lines("\x02sync_alignment=true", *_ELEVENLABS)],
    "/v1/text-to-dialogue/stream-input": [_lines("\x02output_format=pcm_24000", *_DIALOGUE)],
    "/v1/text-to-dialogue/multi-stream-input": [_lines("\x02sync_alignment=true", *_DIALOGUE)],
    "/v1/audio/speech/stream": [
        _lines(
            {"type": "session.config", "voice": "tone-660", "response_format": "pcm", "split_granularity": "sentence"},
            *({"type": "input.text", "text": "Hello there. "}, T * 3, {"type": "input.cancel"}, {"type": "input.done"}),
            T * 3,
        )
    ],
}

_OPEN = Open(1, EngineOptions(EmbeddedVoice((0.5, 1.0))))
SEEDS: dict[str, list[bytes]] = {
    "protocol": [line.encode() for talk in TALK["/v1/tts/stream"] for line in talk.split("\n") if line[0] == "{"],
    "speech_request": [
        json.dumps({"input": "Hello", "voice": {"id": "alloy"}, "response_format": "opus", "speed": 1.1}).encode(),
        json.dumps({"input": "Hello", "model": "tts-1-de", "stream_format": "sse", "speaker_embedding": [1]}).encode(),
    ],
    "multipart": [TYPE.encode() + b"\n" + GOOD],
    "sdp": [CHROMIUM.encode()],
    "wire": [
        b"\x00" + _frames(_OPEN, Append(1, "Hello \ud83d"), Credit(1, 2), EnginePing(3)),
        b"\x09" + _frames(Audio(1, b"\x01\x02"), Words(1, ()), Finished(1, "end"), EnginePong(1, 2, 3, 0.5)),
    ],
    "markup": [
        b'<speak><p>Hi <emotion val\x1eue="sad"/>you. <break time="1\x1es"/> [laughs] <spell>A 1</spell> &am\x1ep;</p>',
        '<think>a < b\n</think>\x1e<sub alias="x y">W3C</sub> <<t|ə|m>> <mark name="m"/>H<sub>2</sub> [1](a)'.encode(),
        "<|channel|>analysis<|mes\x1esage|>a<｜tool▁sep｜>[TOOL_\x1eCALLS]b[/THINK]<|tool_call>c<tool_\x1ecall|>]\x1e]>".encode(),
        b'<sub alias="x y">\x1e\n</sub><![CDATA[<answer>]]><|im_start|>a\x1e b<prosody volume="+9999dB">c</prosody>.',
        b'\\{"word": "a", "pro\x1enounce": "b"\\} \\{pause:1s\\} <|im_end|> <expr type="break" label="1s"/> </',
    ],
    "lexicon": [
        b'{"new york": "nyoo york", "US": {"ipa": "x"}, "C++": "see"}'
        b"\x1ein New\x1e  Yo\x1erk, NEW YORK, us, US and C++\x1e.",
        b"<lexicon><lexeme><grapheme>don</grapheme><grapheme>caf\xc3\xa9</grapheme><phoneme>d</phoneme></lexeme>"
        b"</lexicon>\x1eDon\x1e't, Don, cafe\x1e\xcc\x81 CAF\xc3\x89",
        (
            '{"重庆": "a", "アイ": "b", "삼성": "c", "o": {"alias": "d", "whole_word": false}}'
            "\x1e在重\x1e庆 アイス 삼성은 foo"
        ).encode(),
    ],
    "text": [
        "2024年3月5日15:30，2个\x1e，¥12.50 1 Std., am 3. Mai 5 руб. 1 000 €\x1e 15h30".encode(),
        b"**Hello**, \x1e[you](http://a.b/c)\x1e <b>Dr. Smith</b> paid 3.14\x1e\xe2\x82\xac. `code` \x1e```py\nx\n```",
        "你好，世界。 👩\u200d💻 <|im_start|> e\u0301 &amp; | a | b |\n- [x] done\n1. one".encode(),
    ],
}
