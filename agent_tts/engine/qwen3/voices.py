"""The voices of requests: named speakers, cloned and designed voices of the library, speaker vectors in a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine.qwen3.admission import LoadedVoice
from agent_tts.engine.qwen3.model import Qwen3Model
from agent_tts.errors import InvalidRequest, UnknownVoice, Unsupported
from agent_tts.events import SpeechOptions, Voice, VoiceKind
from agent_tts.model import prompt
from agent_tts.voices import ANYONE, DESIGN, LANGUAGES
from agent_tts.voices.library import StoredVoice, VoiceLibrary
from agent_tts.voices.names import library_name, parse_mix

# The released speakers: the language that each was recorded in, and how it sounds by the model's own documentation.
SPEAKERS = {
    "ryan": ("en", "a dynamic man with a strong rhythm"),
    "aiden": ("en", "a sunny American man with a clear midrange"),
    "serena": ("zh", "a warm, gentle young woman"),
    "vivian": ("zh", "a bright, slightly edgy young woman"),
    "uncle_fu": ("zh", "a seasoned man with a low, mellow timbre"),
    "dylan": ("zh", "a youthful man of Beijing, clear and natural"),
    "eric": ("zh", "a lively man of Chengdu, slightly husky"),
    "ono_anna": ("ja", "a playful woman, light and nimble"),
    "sohee": ("ko", "a warm woman with rich emotion"),
}

# Voices of other services -> ours, for clients that were written for those.
ALIASES = {
    "alloy": "serena",
    "ash": "ryan",
    "ballad": "aiden",
    "cedar": "uncle_fu",
    "coral": "vivian",
    "echo": "aiden",
    "fable": "dylan",
    "marin": "sohee",
    "nova": "vivian",
    "onyx": "uncle_fu",
    "sage": "ono_anna",
    "shimmer": "serena",
    "verse": "ryan",
}


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """Who is to speak: settled when a request comes, before its model has to be loaded."""

    model: Qwen3Model
    speaker: str | None = None  # a named voice of the model
    stored: tuple[tuple[StoredVoice, float], ...] = ()  # cloned voices of the library, with their weights
    embedding: tuple[float, ...] = ()  # a speaker's vector that the request carries
    instructions: str = ""  # how to speak, and in a designed voice who

    @property
    def key(self) -> tuple[object, ...]:
        """What its `SpeakerPlace` depends on."""
        return self.model.name, self.embedding, tuple((voice.version, weight) for voice, weight in self.stored)


class Qwen3Voices:
    """Voices of some models and of a library; keeps the most recently used clones ready.

    Args:
        limit: clones that are kept ready.
    """

    def __init__(self, models: Sequence[Qwen3Model], library: VoiceLibrary, limit: int) -> None:
        self._models = models
        self._library = library
        self._limit = limit
        # Clones on their device, the one used last at the end; by model, voice and its version.
        self._ready: OrderedDict[tuple[object, ...], LoadedVoice] = OrderedDict()

        # Names of languages and dialects that a model speaks, and the codes of the languages among them.
        self._spoken = {name for model in models for name in model.config.talker.codec_language_id}
        self._codes = tuple(code for name, code in LANGUAGES.items() if name in self._spoken)
        # The voices that the models have of their own; the first is the default.
        self.listed = self._list()
        # Names that other services have for such voices -> the voices that stand in for them.
        own = [voice.name for voice in self.listed]
        self.aliases = {alias: name if name in own else own[0] for alias, name in ALIASES.items()}

    def _list(self) -> tuple[Voice, ...]:
        languages = self._codes
        named = {name for model in self._models for name in model.config.talker.spk_id}
        known = [name for name in SPEAKERS if name in named]
        voices = [Voice(name, _first(SPEAKERS[name][0], languages), SPEAKERS[name][1]) for name in known]
        voices += [Voice(name, languages) for name in sorted(named - SPEAKERS.keys())]
        if any(model.kind == "designed" for model in self._models):
            voices.append(Voice(DESIGN, languages, "the voice that the instructions describe"))
        if not voices:
            voices.append(Voice(ANYONE, languages, "no voice in particular: another one for each seed"))
        return tuple(voices)

    def languages(self) -> dict[str, str]:
        """Every name of a language that a model speaks -> its code; a dialect is its own code."""
        return {name: LANGUAGES.get(name, name) for name in self._spoken} | {code: code for code in self._codes}

    def cast(self, options: SpeechOptions) -> Cast:
        """Who speaks a request.

        Raises:
            UnknownVoice, Unsupported: no voice or model does.
        """
        instructions = options.instructions or ""
        if options.speaker_embedding is not None:
            model = self._model(options, "cloned")
            return Cast(model, embedding=options.speaker_embedding)
        name = options.voice or self.listed[0].name
        name = self.aliases.get(name, name)
        if name == DESIGN:
            return Cast(self._model(options, "designed"), instructions=instructions)
        if name == ANYONE:
            return Cast(self._model(options, "cloned"))
        for model in self._models:
            if name in model.config.talker.spk_id and options.model in (None, model.name):
                return Cast(model, speaker=name, instructions=instructions)
        if parts := parse_mix(name):
            stored = tuple((self._library.get(library_name(part)), weight) for part, weight in parts)
            return Cast(self._model(options, "cloned"), stored=stored)
        voice = self._library.get(library_name(name))
        model = self._model(options, voice.kind)
        if voice.kind == "designed":
            return Cast(model, instructions=" ".join(filter(None, (voice.prompt, instructions))))
        return Cast(model, stored=((voice, 1.0),))

    def _model(self, options: SpeechOptions, kind: VoiceKind) -> Qwen3Model:
        for model in self._models:
            if model.kind == kind and options.model in (None, model.name):
                return model
        raise Unsupported(f"no model that was asked for speaks {kind} voices")

    def ready(self, cast: Cast) -> LoadedVoice | None:
        """The voice on its model, which is loaded; None for a clone that `load` has to make ready first."""
        if not cast.stored and not cast.embedding:
            return LoadedVoice(prompt.PromptVoice(cast.speaker))
        speaker = self._ready.get(cast.key)
        if speaker is not None:
            self._ready.move_to_end(cast.key)
        return speaker

    def keep(self, cast: Cast, speaker: LoadedVoice) -> None:
        """Keep a clone of the library that `load` has made ready, as long as others are not used more recently."""
        if cast.embedding:
            return
        self._ready[cast.key] = speaker
        while len(self._ready) > self._limit:
            self._ready.popitem(last=False)

    def load(self, cast: Cast) -> LoadedVoice:
        """Make a clone ready, in any thread; its reference takes as long as that many frames of speech.

        Raises:
            InvalidRequest: the vector is of another size than the model's, or too large for it.
            UnknownVoice, Unsupported: it has been deleted, or was made for another model.
        """
        if cast.embedding:
            with np.errstate(over="ignore"):  # an infinity is refused below
                return self._clone(cast.model, np.asarray(cast.embedding, np.float32))
        arrays = [self._library.arrays(voice.name) for voice, _ in cast.stored]
        if any(self._library.get(voice.name).version != voice.version for voice, _ in cast.stored):
            raise UnknownVoice("this voice was deleted and its name given anew: try again")
        size = f"vector_{cast.model.vector_size}"
        if not all(size in array for array in arrays):
            raise Unsupported("this voice was made for a model of another size: add it anew")
        vector = np.sum([array[size] * weight for array, (_, weight) in zip(arrays, cast.stored, strict=True)], axis=0)
        (voice, _), codes = cast.stored[0], arrays[0].get("codes")
        if len(cast.stored) > 1 or voice.transcript is None or codes is None:
            return self._clone(cast.model, vector)
        if codes.max() >= cast.model.config.codec.codebook_size:  # on a GPU it would end the whole engine
            raise Unsupported("this voice was made for a model with another codec: add it anew")
        transcript = tuple(cast.model.tokenizer.encode(voice.transcript))
        return self._clone(cast.model, vector, prompt.Reference(transcript, tuple(map(tuple, codes.tolist()))))

    def _clone(
        self, model: Qwen3Model, vector: NDArray[np.float32], reference: prompt.Reference | None = None
    ) -> LoadedVoice:
        try:
            return model.speaker(prompt.PromptVoice(prompt.SpeakerPlace.VECTOR, reference), vector.astype(np.float32))
        except ValueError as error:
            raise InvalidRequest(str(error), "speaker_embedding") from None


def _first(language: str, others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((language, *others)))
