"""The tags that are known, of all dialects, and what their attributes mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent_tts.directives import MAX_PAUSE_MS, Prosody
from agent_tts.text.phones import to_ipa

# SSML, with the extensions of its vendors. `sub` and `mark` are HTML's, too: they need their attributes.
SSML = ["speak", "p", "s", "w", "break", "sub", "say-as", "phoneme", "prosody", "emphasis", "lang", "voice", "mark"]
SSML += ["token", "audio", "desc", "metadata", "meta", "lexicon", "lookup"]
VENDORS = ("amazon:", "google:", "mstts:")  # namespaces
CARTESIA = ["emotion", "speed", "volume", "spell"]
# The one tag that LiveKit teaches language models, and what it makes of it for its providers.
LIVEKIT = ["expr", "expression", "sound"]
# Wrapping and single tags of those providers, which language models also write of their own accord.
DELIVERIES = {
    "slow": {"rate": "0.85"},
    "fast": {"rate": "1.2"},
    "soft": {"volume": "0.9"},
    "loud": {"volume": "1.3"},
    "higher-pitch": {"pitch": "1.15"},
    "lower-pitch": {"pitch": "0.85"},
}
MANNER_TAGS = {"whisper", "singing", "sing-song", "laugh-speak", "build-intensity", "decrease-intensity", "forceful"}
MANNER_TAGS |= {"happy", "sad", "angry", "excited", "calm", "surprised", "sympathetic", "curious", "sarcastic"}
MANNER_TAGS |= {"confident", "playful", "nervous"}
SOUND_TAGS = ["laugh", "chuckle", "sigh", "breath", "cough", "argh", "gasp", "giggle", "cry", "stress"]
SOUND_TAGS += ["groan", "yawn", "sniffle", "laughs", "chuckles", "sighs", "gasps"]
# Blocks of language models that are not for the listener.
THOUGHTS = ["think", "thinking", "thought", "reasoning", "reflection", "scratchpad", "scratch_pad", "analysis"]
CALLS = ["tool_call", "tool_calls", "tool_response", "tool_result", "function_call", "function_calls", "tool_use"]
CALLS += ["function_results", "invoke", "function", "toolcall", "tool_code"]
CALLS += [
    f"{model}{name}" for model in ("antml:", "minimax:", "seed:", "xai:", "｜dsml｜") for name in ("think", *CALLS)
]
# Around what is.
ANSWERS = ["answer", "final_answer", "final", "response", "output"]
# Keys for a telephone menu, from Pipecat's navigator.
COMMANDS = ["dtmf"]
TURNS = ["start_of_turn", "end_of_turn"]

BLOCKS = {*THOUGHTS, *CALLS, *COMMANDS, "desc", "metadata"}
# Words of prose, too: without attributes, an opening tag counts where a line or a sentence begins.
PROSE = {*THOUGHTS, *ANSWERS, "invoke", "desc", "metadata"}
# Tokens of chat templates. Text behind these is not for the listener, up to the next one.
SILENT = re.compile(r"(?!/|.*(?:end|suffix)).*(?:tool|function|think|thought|action|plugin|inner|python_tag).*")
# Before a message, for whom it is.
HEADERS = {"start", "channel", "constrain", "start_header_id"}
# A role follows them, up to white space.
ROLES = {"im_start", "turn", "start_of_turn"}
# Tokens that are written in another way than <|name|>.
CLOSING_TOKENS = ["tool", "tool_call", "tool_response", "channel", "turn"]  # <name|>
BRACKET_TOKENS = ["TOOL_CALLS", "TOOL_RESULTS", "/TOOL_RESULTS", "THINK", "/THINK", "INST", "/INST"]  # [NAME]
# Names of types in code: without attributes, an opening tag directly behind a word is text, as in `List<voice>`.
TYPES = {"voice", "token", "audio", "sound", "lexicon", "metadata", "meta", "s", "w", "p"}
# Tags that name an emotion or a way to speak.
EXPRESSIVE = {"emotion", "expression", "mstts:express-as", "amazon:emotion", "amazon:effect", "google:style"}

# ElevenLabs' audio tags and Cartesia's sounds: ways to speak, and sounds that nobody makes here.
STYLES = [
    *("angry", "annoyed", "anxious", "calm", "cheerful", "cheerfully", "concerned", "confident", "confused", "crying"),
    *("curious", "deadpan", "disappointed", "dramatic", "dramatically", "empathetic", "encouraging", "enthusiastic"),
    *("excited", "excitedly", "flirty", "friendly", "frustrated", "happy", "happily", "hopeful", "impatient", "joking"),
    *("mischievously", "mocking", "mumbling", "nervous", "nervously", "neutral", "playful", "playfully", "proud"),
    *("quietly", "rushed", "sad", "sadly", "sarcastic", "sarcastically", "scared", "serious", "seriously", "shouting"),
    *("sheepishly", "slowly", "softly", "sorrowful", "surprised", "sympathetic", "thoughtful", "tired", "warmly"),
    *("whisper", "whispering", "whispers", "worried", "shouts", "hurried", "soft", "slow", "fast", "drawn out"),
    *("regretful", "delighted", "determined", "grateful", "fearful", "disgusted", "warm and friendly tone"),
]
DEGREES = ["very", "really", "slightly", "a little", "almost", "gently"]
ACCENTS = [
    *("american", "australian", "british", "canadian", "chinese", "dutch", "english", "french", "german", "indian"),
    *("irish", "italian", "jamaican", "japanese", "korean", "mexican", "nigerian", "polish", "portuguese", "russian"),
    *("scottish", "southern", "spanish", "swedish", "texan", "welsh"),
]
STYLES += [f"{degree} {style}" for degree in DEGREES for style in STYLES]
STYLES += [f"{degree}{accent} accent" for degree in ("", "strong ", "slight ", "thick ") for accent in ACCENTS]
SOUNDS = [
    *("laughter", "laugh", "laughs", "laughing", "laughs harder", "starts laughing", "chuckle", "chuckles", "giggle"),
    *("giggles", "giggling", "sigh", "sighs", "exhale", "exhales", "exhales sharply", "inhale", "inhales deeply"),
    *("gasp", "gasps", "cough", "coughs", "clears throat", "clearing throat", "sniff", "sniffs", "sobs", "snorts"),
    *("swallows", "gulps", "yawns", "groans", "hums", "sings", "singing", "wheezing", "woo", "applause", "clapping"),
    *("gunshot", "explosion", "music", "breath", "breathes", "snickers", "hesitates", "stammers", "interrupting"),
    *("overlapping", "breathe", "clear throat", "clear_throat", "yawn", "cry", "tsk", "tongue-click", "lip-smack"),
    *("hum-tune", "chuckling", "sighing", "gasping", "groaning", "yawning", "sobbing", "emphasis"),
]
# Ways to speak that are no emotion.
MANNERS = {
    **dict.fromkeys(["whisper", "whispering", "whispers", "whispered"], "Whisper."),
    **dict.fromkeys(["quietly", "softly", "soft"], "Speak softly."),
    **dict.fromkeys(["neutral", "none", "default", "normal", ""], None),
    **dict.fromkeys(["shouting", "shouts"], "Shout."),
    **dict.fromkeys(["slowly", "slow"], "Speak slowly."),
    **dict.fromkeys(["rushed", "hurried", "fast"], "Speak in a rush."),
    **dict.fromkeys(["singing", "sing-song"], "Speak in a sing-song voice."),
    "drawn out": "Draw out the words.",
    "mumbling": "Mumble.",
}
PAUSES_MS = {"pause": 500, "pauses": 500, "short pause": 250, "long pause": 1_000}
PAUSES_MS |= {"long-pause": 1_000, "break": 500, "long-break": 1_000}


class Names:
    """Names, and what may become one of them; also all names in the namespaces of `spaces`, such as "amazon:"."""

    def __init__(self, *names: Iterable[str], spaces: tuple[str, ...] = ()) -> None:
        self._names = {name for some in names for name in some}
        self._spaces = spaces
        self._starts = {name[:end] for name in (*self._names, *spaces) for end in range(len(name) + 1)}

    def __contains__(self, name: str) -> bool:
        return name in self._names or (":" in name and name.startswith(self._spaces))

    def may_become(self, start: str) -> bool:
        return start in self._starts or start in self


NAMES = Names(
    *(SSML, CARTESIA, LIVEKIT, DELIVERIES, MANNER_TAGS, SOUND_TAGS, THOUGHTS, CALLS, ANSWERS, COMMANDS, TURNS),
    spaces=VENDORS,
)
BRACKETS = Names(STYLES, SOUNDS, PAUSES_MS, BRACKET_TOKENS)

_BREAKS_MS = {"none": 0, "x-weak": 100, "weak": 200, "medium": 400, "strong": 700, "x-strong": 1_000}
_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})\s*(ms|s)", re.ASCII)
_NUMBER = re.compile(r"([+-]?)(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})(%|db|st)?", re.ASCII | re.IGNORECASE)

RATES = {"x-slow": 0.6, "slow": 0.8, "medium": 1.0, "fast": 1.25, "x-fast": 1.5, "slowest": 0.6, "fastest": 1.5}
VOLUMES = {"silent": 0.0, "x-soft": 0.35, "soft": 0.6, "medium": 1.0, "loud": 1.5, "x-loud": 2.0}
PITCHES = {"x-low": 0.7, "low": 0.85, "medium": 1.0, "high": 1.15, "x-high": 1.4}
NORMAL = ("default", "normal")

MAX_STYLE = 64  # characters of its name

SPELLED = ("characters", "spell-out", "verbatim", "digits", "telephone")


def instructions(style: str) -> str | None:
    """An emotion or a way to speak, as an instruction; None: the usual one."""
    name = " ".join(re.sub(r"[^\w' -]", " ", style).lower().split())[:MAX_STYLE]
    if name.endswith(" accent"):
        return f"Accent: {name.removesuffix(' accent')}."
    return MANNERS.get(name, f"Emotion: {name}.")


def pause_ms(attributes: dict[str, str]) -> int:
    """Of `<break>`; one that says nothing is medium, one that says nonsense is none."""
    if (time := attributes.get("time", attributes.get("value"))) is not None:
        found = _TIME.fullmatch(time.strip())
        ms = float(found[1]) * (1_000 if found[2] == "s" else 1) if found else 0.0
        return min(MAX_PAUSE_MS, round(ms))
    return _BREAKS_MS.get(attributes.get("strength", "medium"), 0)


def factor(value: str, words: dict[str, float], least: float, most: float) -> float | None:
    """A factor as SSML or a vendor writes it: a word, 1.2, 120%, +20%, +6dB, -2st; None if it is none of these."""
    value = value.strip().lower()
    if value in NORMAL:
        return 1.0
    if value in words:
        return words[value]
    if not (found := _NUMBER.fullmatch(value)):
        return None
    sign, digits, unit = found.groups()
    number = -float(digits) if sign == "-" else float(digits)
    if unit == "%":
        number = number / 100 + bool(sign)
    elif unit == "db":
        number = 10 ** (min(number, 60) / 20)  # above any limit, and a number
    elif unit == "st":
        number = 2 ** (min(number, 60) / 12)
    elif sign:
        number += 1
    return min(max(number, least), most)


def prosody(name: str, given: dict[str, str], now: Prosody) -> Prosody:
    """What `<prosody>`, `<speed>`, `<volume>` and those of `DELIVERIES` set; what they do not name stays."""
    value = given.get("ratio", given.get("value", ""))
    if name == "speed":
        given = {"rate": value}
    elif name == "volume":
        given = {"volume": value}
    elif name in DELIVERIES:
        given = DELIVERIES[name]
    elif name != "prosody":
        return now
    elif _NUMBER.fullmatch(loudness := given.get("volume", "").strip()) and loudness[-1].isdigit():
        given = {**given, "volume": f"{loudness}%"}  # of 100, in SSML
    speed = factor(given.get("rate", ""), RATES, 0.25, 4.0)
    volume = factor(given.get("volume", ""), VOLUMES, 0.0, 4.0)
    pitch = factor(given.get("pitch", ""), PITCHES, 0.5, 2.0)
    return Prosody(
        now.speed if speed is None else speed,
        now.volume if volume is None else volume,
        now.pitch if pitch is None else pitch,
    )


def ipa(given: dict[str, str]) -> str | None:
    """The phonemes of `<phoneme>`; None without any, and for an alphabet that is not known."""
    try:
        return to_ipa(given.get("ph", ""), given.get("alphabet", "ipa")) or None
    except ValueError:
        return None
