"""The voices of requests: named speakers, cloned and designed voices of the library, speaker vectors in a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from agent_tts.engine.qwen3.served import LoadedVoice, ServedModel
from agent_tts.engine_info import Voice, VoiceKind
from agent_tts.errors import AtCapacity, InvalidRequest, UnknownVoice, Unsupported
from agent_tts.model.entries import CheckpointError
from agent_tts.model.prompt import PromptVoice, Reference
from agent_tts.options import (
    AnyVoice,
    DesignedVoice,
    EmbeddedVoice,
    EngineOptions,
    NamedVoice,
    ResolvedVoice,
    StoredPart,
    StoredVoices,
)
from agent_tts.text.data import data
from agent_tts.voices import ANYONE, DESIGN, LANGUAGES, own_voice
from agent_tts.voices.library import VoiceLibrary

_DATA = data("voices", Path(__file__).parent)
# The released speakers: the language that each was recorded in, and how it sounds.
SPEAKERS = {name: (language, sound) for name, (language, sound) in _DATA["speakers"].items()}
ALIASES: dict[str, str] = _DATA["aliases"]  # voices of other services -> ours


@dataclass(frozen=True, slots=True)
class ModelVoice:
    """A voice and the model that speaks it: known when a request comes, before its model has to be loaded."""

    model: ServedModel
    voice: ResolvedVoice
    instructions: str = ""  # how to speak, and in a designed voice who; none for a clone


class Qwen3Voices:
    """Voices of some models and of a library; keeps the `limit` most recently used clones ready."""

    def __init__(self, models: Sequence[ServedModel], library: VoiceLibrary, limit: int) -> None:
        self._models = models
        self._library = library
        self._limit = limit
        # Clones on their device, the one used last at the end.
        self._ready: OrderedDict[ModelVoice, LoadedVoice] = OrderedDict()
        # Held while `_ready` is used: the loader's thread drops idle adapters from it.
        self._lock = Lock()
        names = {name for model in models for name in model.config.talker.codec_language_id}
        codes = tuple(code for name, code in LANGUAGES.items() if name in names)
        # Every name of a language that a model speaks -> its code; a dialect is its own code.
        self.languages = {name: LANGUAGES.get(name, name) for name in names} | {code: code for code in codes}
        # The voices that the models have of their own; the first is the default.
        self.listed = _listed(models, codes)
        self._default = own_voice(self.listed[0].name)
        own = [voice.name for voice in self.listed]
        self.aliases = {alias: name if name in own else own[0] for alias, name in ALIASES.items()}

    def choose(self, options: EngineOptions) -> ModelVoice:
        """The voice and the model of a request. Raises Unsupported: no model here speaks it."""
        voice = options.voice or self._default
        kind: VoiceKind = "cloned"
        instructions = ""  # a cloning model takes none
        if isinstance(voice, NamedVoice):
            kind, instructions = "named", options.instructions or ""
        elif isinstance(voice, DesignedVoice):
            kind, instructions = "designed", " ".join(filter(None, (voice.prompt, options.instructions)))
        for model in self._models:
            speaks = model.kind == kind and options.model in (None, model.name)
            if speaks and (not isinstance(voice, NamedVoice) or voice.name in model.config.talker.spk_id):
                return ModelVoice(model, voice, instructions)
        raise Unsupported(f"no model that was asked for speaks {kind} voices")

    def ready(self, wanted: ModelVoice) -> LoadedVoice | None:
        """The voice on its model, which is loaded; None for a clone that `load` has to make ready first."""
        if isinstance(wanted.voice, NamedVoice):
            return LoadedVoice(PromptVoice(wanted.voice.name))
        if isinstance(wanted.voice, DesignedVoice | AnyVoice):
            return LoadedVoice(PromptVoice(None))
        with self._lock:
            if wanted in self._ready:
                self._ready.move_to_end(wanted)
            return self._ready.get(wanted)

    def keep(self, wanted: ModelVoice, speaker: LoadedVoice) -> None:
        """Keep a clone of the library that `load` has made ready, as long as others are not used more recently."""
        if isinstance(wanted.voice, EmbeddedVoice):
            return
        with self._lock:
            self._ready[wanted] = speaker
            while len(self._ready) > self._limit:
                self._ready.popitem(last=False)

    def read_library(self) -> frozenset[tuple[str, str]]:
        """Name and version of each voice of the library, in the loader's thread."""
        return frozenset((voice.name, voice.version) for voice in self._library.voices())

    def forget_others(self, stored: Container[tuple[str, str]]) -> None:
        """Drop clones, and their cached prompts, that are not `stored` in the library any more."""

        def is_gone(voice: ResolvedVoice) -> bool:
            parts = voice.parts if isinstance(voice, StoredVoices) else ()
            return any((part.stored, part.version) not in stored for part in parts)

        with self._lock:
            for wanted in [wanted for wanted in self._ready if is_gone(wanted.voice)]:
                del self._ready[wanted]
        for model in self._models:
            if model.loaded:
                model.runner.forget(is_gone)

    def load(self, wanted: ModelVoice) -> LoadedVoice:
        """Make a clone ready, in any thread; its reference takes as long as that many frames of speech.

        Raises:
            InvalidRequest: the vector is of another size than the model's, or too large for it.
            UnknownVoice, Unsupported: it has been deleted, or was made for another model.
            AtCapacity: it needs an adapter, and requests use as many as there may be.
        """
        model = wanted.model
        if isinstance(wanted.voice, EmbeddedVoice):
            with np.errstate(over="ignore"):  # an infinity is refused below
                return _clone(model, np.asarray(wanted.voice.vector, np.float32))
        assert isinstance(wanted.voice, StoredVoices)
        adapter = self._load_adapter(model, *wanted.voice.parts) if len(wanted.voice.parts) == 1 else None
        return replace(self._load_stored(model, wanted.voice), stored=wanted.voice, adapter=adapter)

    def _load_adapter(self, model: ServedModel, part: StoredPart) -> Any:
        """The adapter of a voice; the adapters of voices that no request uses make room for it."""
        if not self._library.get(part.stored).adapter:
            return None
        bank = model.runner.adapters
        if bank is None:
            raise Unsupported("this voice has an adapter, and this node runs none: set qwen3.adapters")
        try:
            file = self._library.adapter(part.stored)
            file.check(model.config.talker, model.name)
            while True:
                try:
                    return bank.load(part, file)
                except AtCapacity:
                    if not self._drop_adapter(model):
                        raise
        except CheckpointError as error:
            logger.error("{}: the adapter of the voice {!r}: {}", model.name, part.stored, error)
            raise Unsupported(f"the adapter of this voice does not fit the model {model.name}: {error}") from None

    def _drop_adapter(self, model: ServedModel) -> bool:
        """Drop the voice of a model with an adapter that was used the longest ago; False when there is none."""
        with self._lock:
            for wanted, speaker in self._ready.items():
                if speaker.adapter is not None and wanted.model is model:
                    del self._ready[wanted]
                    return True
        return False

    def _load_stored(self, model: ServedModel, wanted: StoredVoices) -> LoadedVoice:
        parts = wanted.parts
        arrays = [self._library.arrays(part.stored) for part in parts]
        voices = [self._library.get(part.stored) for part in parts]
        if any(voice.version != part.version for voice, part in zip(voices, parts, strict=True)):
            raise UnknownVoice("this voice was deleted and its name given anew: try again")
        size = f"vector_{model.vector_size}"
        if not all(size in array for array in arrays):
            raise Unsupported("this voice was made for a model of another size: add it anew")
        vector = np.sum([array[size] * part.weight for array, part in zip(arrays, parts, strict=True)], axis=0)
        voice, codes = voices[0], arrays[0].get("codes")
        if len(parts) > 1 or voice.transcript is None or codes is None:
            return _clone(model, vector)
        if codes.max() >= model.config.codec.codebook_size:  # on a GPU it would end the whole engine
            raise Unsupported("this voice was made for a model with another codec: add it anew")
        transcript = tuple(model.tokenizer.encode(voice.transcript))
        return _clone(model, vector, Reference(transcript, tuple(map(tuple, codes.tolist()))))


def speakers_of(model: ServedModel) -> tuple[str, ...]:
    """The named voices of a model: the released ones in their order, then others. None unless it speaks those."""
    speakers = model.config.talker.spk_id if model.kind == "named" else {}
    return (*(name for name in SPEAKERS if name in speakers), *sorted(speakers.keys() - SPEAKERS.keys()))


def _listed(models: Sequence[ServedModel], languages: tuple[str, ...]) -> tuple[Voice, ...]:
    named = {name for model in models for name in speakers_of(model)}
    voices = [
        Voice(name, tuple(dict.fromkeys((recorded, *languages))), description)
        for name, (recorded, description) in SPEAKERS.items()
        if name in named
    ]
    voices += [Voice(name, languages) for name in sorted(named - SPEAKERS.keys())]
    if any(model.kind == "designed" for model in models):
        voices.append(Voice(DESIGN, languages, "the voice that the instructions describe"))
    return tuple(voices) or (Voice(ANYONE, languages, "no voice in particular: another one for each seed"),)


def _clone(model: ServedModel, vector: NDArray[np.float32], reference: Reference | None = None) -> LoadedVoice:
    try:
        if len(vector) != (size := model.config.talker.hidden_size):
            raise ValueError(f"a speaker vector of {len(vector)} values, not {size}")
        return model.clone(vector.astype(np.float32), reference)
    except ValueError as error:
        raise InvalidRequest(str(error), "speaker_embedding") from None
