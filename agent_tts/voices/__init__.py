"""Voices: what they are called, here and elsewhere."""

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
