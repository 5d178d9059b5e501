"""Voices: what they are called, here and elsewhere."""

from agent_tts.events import AnyVoice, DesignedVoice, NamedVoice, ResolvedVoice

# What clients written for other engines ask for: every engine of ours has an alias for each.
OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
)
QWEN_VOICES = ("vivian", "serena", "uncle_fu", "ryan", "aiden", "ono_anna", "sohee", "eric", "dylan")

# Voices of a model without speakers of its own.
DESIGN = "design"  # the one that a request's instructions describe
ANYONE = "anyone"  # no voice in particular: another one for each seed

PSEUDO_VOICES: dict[str, ResolvedVoice] = {DESIGN: DesignedVoice(), ANYONE: AnyVoice()}


def own_voice(name: str) -> ResolvedVoice:
    """One of an engine's own voices."""
    return PSEUDO_VOICES.get(name, NamedVoice(name))


# English names of languages, as Qwen3-TTS takes them, and their codes.
LANGUAGES = {
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}
