"""Resolves the voice, language and model that a request names. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from agent_tts.engine_info import EngineInfo, Model, Voice, VoiceKind
from agent_tts.errors import InvalidRequest, UnknownModel, UnknownVoice, Unsupported, UnsupportedLanguage
from agent_tts.options import (
    CommonOptions,
    DesignedVoice,
    EmbeddedVoice,
    EngineOptions,
    NamedVoice,
    ResolvedVoice,
    SpeechOptions,
    StoredPart,
    StoredVoices,
)
from agent_tts.text.entries import Lexicon
from agent_tts.voices import ANYONE, DESIGN, OPENAI_VOICES, PSEUDO_VOICES, QWEN_VOICES, default_voice, own_voice
from agent_tts.voices.library import StoredLexicon, StoredVoice
from agent_tts.voices.names import Mix, did_you_mean, library_name, parse_mix

# Accepted in addition to the engine's own model names; each stands for any model that speaks the voice.
OPENAI_MODELS = ("gpt-4o-mini-tts", "tts-1", "tts-1-hd")
# Snapshots have a date behind the name: gpt-4o-mini-tts-2025-12-15, tts-1-1106. It changes nothing.
_DATED = re.compile(rf"^({'|'.join(map(re.escape, OPENAI_MODELS))})-(\d{{4}}-\d\d-\d\d|\d{{4}})(?=-|$)")

# Names that a library voice cannot have, with any engine.
RESERVED = frozenset({*OPENAI_VOICES, *QWEN_VOICES, *PSEUDO_VOICES})

# The alias that applies to every unknown voice name.
ANY_NAME = "*"

# The type of checkpoint that speaks each kind of voice.
CHECKPOINTS: dict[VoiceKind, str] = {"named": "CustomVoice", "designed": "VoiceDesign", "cloned": "Base"}
HUB = "Qwen/Qwen3-TTS-12Hz-1.7B-"
_COMMON = [field.name for field in dataclasses.fields(CommonOptions)]
LISTED = ": `agent-tts voices` and GET /v1/audio/voices list them"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A voice, and what a model needs to speak it."""

    voice: ResolvedVoice
    name: str | None  # name in the engine or the library; None for a speaker embedding
    what: str  # description of the voice for error messages
    kind: VoiceKind | None  # None on an engine without a choice of models
    vector_sizes: frozenset[int] | None = None  # allowed sizes of the model's speaker vector; None: no vector
    stored: tuple[StoredVoice, ...] = ()  # of the library


class Resolved(NamedTuple):
    options: EngineOptions
    voice: str | None  # its name in the engine or the library; None for a speaker embedding
    lexicons: tuple[Lexicon | StoredLexicon, ...]  # its own and its voices', strongest first
    markup: bool  # whether tags in its text are obeyed


class Routing:
    """All names that a request may use. Rebuilt when the engine or the library has changed."""

    def __init__(
        self, info: EngineInfo, stored: Sequence[StoredVoice] = (), aliases: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.info = info
        self.stored = stored
        # The operator's names for voices. A voice's own name takes precedence.
        self._aliases = aliases
        # Every accepted name of the engine's voices -> the engine's name. Some voices are not listed: they are reached
        # by an alias, or are the default of a model.
        of_models = map(default_voice, info.models)
        own = (info.default_voice, *(voice.name for voice in info.voices), *info.aliases.values(), *of_models)
        self._own = info.aliases | {name: name for name in own}
        # Library voices by name, without those that an engine voice of the same name hides.
        self._stored = {voice.name: voice for voice in stored if voice.name not in self._own}
        self._models = {model.name: model for model in info.models}

    # ------------------------------------------------------------ one request

    def resolve(self, options: SpeechOptions) -> Resolved:
        """The options with the engine's and the library's names, and the voice resolved.

        If the options have no voice, that of the model applies; if they have no language, that in the model's name. The
        model is None on an engine without a choice of models, and for a named voice, whose model the engine selects.

        Raises:
            UnknownVoice, UnsupportedLanguage, UnknownModel: no such name; the message suggests the nearest.
            Unsupported: no model here, or not the requested one, speaks this voice; the message says which would.
            InvalidRequest: an invalid speaker embedding or mix of voices.
        """
        asked, spoken = self.find_model(options.model)
        wanted = self._wanted(options, asked)
        language = options.language if options.language.lower() != "auto" else spoken or "auto"
        told = {name: getattr(options, name) for name in _COMMON}
        told |= {
            "voice": wanted.voice,
            "language": (code := self._language(language)),
            "model": self._choose(wanted, asked),
        }
        told["region"] = language if language.lower().replace("_", "-").startswith(f"{code}-") else None
        lexicons = (options.lexicon, *(voice.lexicon for voice in wanted.stored))
        return Resolved(EngineOptions(**told), wanted.name, tuple(filter(None, lexicons)), options.markup == "auto")

    def model_names(self) -> list[str]:
        return list(dict.fromkeys((*self._models, self.info.model, self.info.engine, *OPENAI_MODELS)))

    def find_model(self, name: str | None) -> tuple[Model | None, str | None]:
        """Model and language that a name stands for; None: any model, no language. Raises `UnknownModel` if unknown."""
        if name is None:
            return None, None
        names = self.model_names()
        if name not in names:
            name = name.rpartition("/")[2]  # of a hub id
            name = _DATED.sub(r"\1", name)
        for known in names:
            if name == known:
                return self._models.get(known), None
            language = name.removeprefix(f"{known}-").lower()
            if len(language) < len(name) and language in self.info.languages:
                return self._models.get(known), language
        near = did_you_mean(name, names)
        raise UnknownModel(f"no such model{near}; models are {', '.join(names)}, each also with a language: tts-1-de")

    def _language(self, asked: str) -> str:
        """The engine's code for a language, regardless of region; "auto" stays "auto"."""
        language = asked.lower()
        if language == "auto":
            return language
        while language:
            if (code := self.info.languages.get(language)) is not None:
                return code
            language = language.replace("_", "-") if "_" in language else language.rpartition("-")[0]
        hint = did_you_mean(asked.lower(), self.info.languages)
        raise UnsupportedLanguage(f"the {self.info.engine} engine does not speak this language{hint}")

    # ------------------------------------------------------------ voices

    def voices(self) -> tuple[Voice, ...]:
        """Every voice that this node can speak: the engine's, then the library's."""
        languages = tuple(sorted(set(self.info.languages.values())))
        added = (
            Voice(voice.name, languages, f"{voice.kind}: {voice.description}" if voice.description else voice.kind)
            for voice in self._stored.values()
            if self._able(_wanted_of(voice))
        )
        return (*self.info.voices, *added)

    def aliases(self) -> dict[str, str]:
        """Other names of voices, the operator's and the engine's, with the voice of each; "*" is none."""
        own = {ANY_NAME, *self._own, *self._stored}
        named = {name: voice for name, voice in self._aliases.items() if name not in own}
        return {name: self._own.get(voice, library_name(voice)) for name, voice in named.items()} | self.info.aliases

    def is_own(self, name: str) -> bool:
        return name in self._own

    def takes_instructions(self, voice: str) -> bool:
        """Whether a model that speaks a voice, by its name, obeys instructions on how."""
        wanted = self._named(voice)
        return wanted is not None and any(model.instructed for model in self._able(wanted))

    def speaks(self, kind: VoiceKind) -> bool:
        return any(model.kind == kind for model in self.info.models)

    def check_new(self, name: str, kind: VoiceKind) -> None:
        """Raise `InvalidRequest` if the engine has a voice of this name, `Unsupported` if no model here speaks it."""
        check_free(name, self._own)
        self._require_kind(f"voices that are {kind}", kind)

    def _wanted(self, options: SpeechOptions, asked: Model | None) -> _Wanted:
        if options.speaker_embedding is not None:
            return self._embedding(options.speaker_embedding, options.voice)
        name = options.voice or (default_voice(asked) if asked else self.info.default_voice)
        if (named := self._named(name)) is not None:
            return named
        other = self._aliases.get(name, self._aliases.get(ANY_NAME))
        if other is None:
            raise self._unknown(name)
        if (named := self._named(other)) is not None:
            return named
        raise UnknownVoice(f"voice_aliases has {other!r} for this voice, which this node does not have")

    def _named(self, name: str) -> _Wanted | None:
        """The voice, or the mix of voices, that `name` stands for; None if unknown."""
        if (own := self._own.get(name, self._own.get(name.lower()))) is not None:
            kinds: dict[str, VoiceKind] = {DESIGN: "designed", ANYONE: "cloned"}
            kind = kinds.get(own, "named") if self._models else None
            return _Wanted(own_voice(own), own, f"the voice {own!r}", kind)
        if (stored := self._stored.get(library_name(name))) is not None:
            return _wanted_of(stored)
        if (mix := parse_mix(name)) is not None:
            return self._mix(mix)
        if name.lower() in QWEN_VOICES and not self.speaks("named"):  # refused with the model that it takes
            name = name.lower()
            return _Wanted(NamedVoice(name), name, f"{name!r} is a voice of the released models", "named")
        return None

    def _embedding(self, vector: tuple[float, ...], voice: str | None) -> _Wanted:
        if voice is not None:
            raise _bad_embedding("stands in the place of a voice: give one of them")
        if not all(map(math.isfinite, vector)):
            raise _bad_embedding("has a value that is not finite")
        sizes = sorted({model.vector_size for model in self.info.models if model.vector_size is not None})
        if sizes and len(vector) not in sizes:
            raise _bad_embedding(f"has {len(vector)} values; allowed are {' or '.join(map(str, sizes))}")
        what = "a speaker embedding is a cloned voice"
        return _Wanted(EmbeddedVoice(vector), None, what, "cloned", frozenset({len(vector)}))

    def _mix(self, mix: Mix) -> _Wanted:
        """A mix of cloned voices. Every voice needs a vector of the model's size."""
        parts, sizes = [], []
        for name, weight in mix:
            voice = self._stored.get(name)
            if voice is None:
                raise self._unknown(name)
            if voice.kind != "cloned" or voice.adapter:
                why = "has a LoRA adapter" if voice.adapter else f"is {voice.kind}"
                raise InvalidRequest(f"only cloned voices can be mixed: {name!r} {why}", "voice")
            parts.append(StoredPart(name, voice.version, weight))
            sizes.append(frozenset(voice.vector_sizes))
        name = "+".join(f"{part.stored}({part.weight!r})" for part in parts)
        what, size = "a mix of voices is cloned", frozenset.intersection(*sizes)
        stored = tuple(voice for voice in self._stored.values() if voice.name in dict(mix))
        return _Wanted(StoredVoices(tuple(parts)), name, what, "cloned", size, stored)

    def _unknown(self, name: str) -> UnknownVoice:
        near = did_you_mean(name, [*self._own, *self._stored])
        return UnknownVoice(f"this node has no such voice{near or LISTED}")

    # ------------------------------------------------------------ models

    def _choose(self, wanted: _Wanted, asked: Model | None) -> str | None:
        """The model that speaks: the requested one, or the first that can. None: the engine selects it."""
        if wanted.kind is None:
            return None
        self._require_kind(wanted.what, wanted.kind)
        able = self._able(wanted)
        if not able:
            raise Unsupported(f"{wanted.what}: it has no vector for the models of this node: add its clip again")
        if asked is not None and asked not in able:
            names = " and ".join(model.name for model in able)
            raise Unsupported(f"{wanted.what}: the model {asked.name} does not speak it, but {names} would")
        if asked is not None:
            return asked.name
        return None if wanted.kind == "named" else able[0].name

    def _able(self, wanted: _Wanted) -> list[Model]:
        return [
            model
            for model in self.info.models
            if model.kind == wanted.kind
            and (wanted.vector_sizes is None or model.vector_size in wanted.vector_sizes)
            and (wanted.kind != "named" or wanted.name in model.speakers)
        ]

    def _require_kind(self, what: str, kind: VoiceKind) -> None:
        if not self.speaks(kind):
            add = f"add a {CHECKPOINTS[kind]} model ({HUB}{CHECKPOINTS[kind]}) to qwen3.models"
            raise Unsupported(f"{what}: this node has no model that speaks it; {add}")


def check_free(name: str, own: Iterable[str] = ()) -> None:
    """Raise `InvalidRequest` if `name` is reserved for voices of engines."""
    if name in RESERVED or name in own:
        raise InvalidRequest(f"name: {name!r} is a voice of the engine: choose another", "name")


def _bad_embedding(why: str) -> InvalidRequest:
    return InvalidRequest(f"speaker_embedding: {why}", "speaker_embedding")


def _wanted_of(voice: StoredVoice) -> _Wanted:
    what = f"the voice {voice.name!r} is {voice.kind}"
    if voice.kind == "designed":
        return _Wanted(DesignedVoice(voice.prompt or ""), voice.name, what, "designed", stored=(voice,))
    parts = (StoredPart(voice.name, voice.version),)
    return _Wanted(StoredVoices(parts), voice.name, what, "cloned", frozenset(voice.vector_sizes), (voice,))
