"""Names of voices and languages, of this project and of others."""

from agent_tts.engine_info import Model
from agent_tts.options import AnyVoice, DesignedVoice, NamedVoice, ResolvedVoice

# Voices that clients of other engines request: every engine here has an alias for each.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer"),
    "verse",
)
QWEN_VOICES = ("vivian", "serena", "uncle_fu", "ryan", "aiden", "ono_anna", "sohee", "eric", "dylan")

# Voices of a model that has no built-in speakers.
DESIGN = "design"  # described by the instructions of a request
ANYONE = "anyone"  # a random voice for each seed

PSEUDO_VOICES: dict[str, ResolvedVoice] = {DESIGN: DesignedVoice(), ANYONE: AnyVoice()}


def default_voice(model: Model) -> str:
    return model.speakers[0] if model.kind == "named" else DESIGN if model.kind == "designed" else ANYONE


def own_voice(name: str) -> ResolvedVoice:
    return PSEUDO_VOICES.get(name, NamedVoice(name))


# English names of languages, as Qwen3-TTS expects them -> their codes.
LANGUAGES = {"chinese": "zh", "english": "en", "french": "fr", "german": "de", "italian": "it", "japanese": "ja"}
LANGUAGES |= {"korean": "ko", "portuguese": "pt", "russian": "ru", "spanish": "es"}
