"""A process that speaks clauses with espeak-ng: `python -I -S worker.py PARENT_PID LIBRARY DATA`.

A text can crash espeak-ng or run for ever in it, so that no other process loads the library. It is a script of its own,
with the standard library alone, which starts in about 30 ms; `workers.py` starts it and imports its formats.

A request on stdin is a `LENGTH`, a `REQUEST`, the path of the language below `lang/`, the name of the variant and the
text, all UTF-8. A word of the text that is given in IPA stands between `IPA_START` and `IPA_END`, and counts as one
character. The reply on stdout is a `LENGTH`, a `REPLY`, an array of `MARK`, int16 samples as espeak-ng made them and,
if the request asks for a stretch, stretched samples. The first reply, without a request, is `READY`, with the sample
rate as its `count`.

A request that takes `CPU_S` of processor time ends the process by SIGPROF. Nothing is written to stderr, where
libraries might quote a text, and no core is dumped.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import BinaryIO

LENGTH = struct.Struct("<I")  # in bytes of what follows; before each request and reply
# Whether the pause at the end is spoken; rate, pitch, range; most samples (-1: any number); stretch; the lengths of
# path and variant in bytes.
REQUEST = struct.Struct("<?HHHidHH")
REPLY = struct.Struct("<BII")  # status, count of marks, bytes of samples before the stretched ones
MARK = struct.Struct("<iiii")  # type of the event, character, length, sample
READY, SPOKEN, TOO_LONG, REFUSED, NO_PHONEMES = range(5)  # of a reply; `REFUSED` has a message
IPA_START, IPA_END = "\x02", "\x03"
MAX_IPA, MAX_IPA_WORD = 256, 32  # characters of a text and of a word: espeak-ng has buffers of 800 and 200 phonemes

CPU_S = 0.5  # ten seconds of speech take 0.015 s, and 0.1 s on a slow machine
VOLUME = 80  # of 100; louder audio clips and starts a gain control that outlasts the synthesis
PIPE_BYTES = 1 << 20  # a reply is written at once: 10 s of speech are 440 kB

WORD, CLAUSE_END = 1, 5  # types of events
_LIST_END = 0
_OUTPUT_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000  # return errors instead of ending the process
_CHARS_UTF8, _PHONEMES, _ENDPAUSE = 1, 0x100, 0x1000
_IPA = 2
_PARAM_RATE = 1  # and volume, pitch and range are the next ones
_STEADY = "\nflutter 0\nroughness 9\n"  # roughness above 7 means none
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # in characters, from 1
        ("length", ctypes.c_int),  # in characters
        ("audio_position", ctypes.c_int),  # in ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_uint64),  # a union
    )


_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))

_NO_AUDIO = _SynthCallback(lambda *_: 1)


class EspeakRefused(Exception):
    """espeak-ng refused a call."""


class Library:
    """espeak-ng, loaded and initialised. It has one global state per process and is not thread-safe.

    Its pitch flutter and roughness continue from one synthesis to the next, so that the same text would sound
    different each time. Each voice is therefore composed without both (two hertz of wobble), and every parameter is set
    before every synthesis: the output depends on the arguments alone.

    Raises:
        OSError, EspeakRefused: it cannot be loaded or initialised.
    """

    def __init__(self, library: str, data: str) -> None:
        self._lib = ctypes.CDLL(library)
        self._data = data
        self.sample_rate: int = self._lib.espeak_Initialize(_OUTPUT_SYNCHRONOUS, 0, os.fsencode(data), _DONT_EXIT)
        if self.sample_rate <= 0:
            raise EspeakRefused("espeak-ng cannot be initialised")
        # The composed voice, a nameless file that vanishes with the process; the library reads it by its descriptor.
        self._voice_file = _nameless_file()
        self._voice_text = lru_cache(maxsize=64)(self._compose)
        self._lib.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._phonemes = lru_cache(maxsize=64)(self._phoneme_table)

    def reply(self, request: bytes) -> bytes:
        """The reply to a request, both without their `LENGTH`."""
        pause, rate, pitch, pitch_range, most, stretch, *lengths = REQUEST.unpack_from(request)
        path_end = REQUEST.size + lengths[0]
        variant_end = path_end + lengths[1]
        path, variant = request[REQUEST.size : path_end].decode(), request[path_end:variant_end].decode()
        text = request[variant_end:].decode()
        try:
            self._select(path, variant)
            with_phonemes = self._with_phonemes(text, path)
            if with_phonemes is None:
                return _reply(NO_PHONEMES)
            for parameter, value in enumerate((rate, VOLUME, pitch, pitch_range), _PARAM_RATE):
                _check(self._lib.espeak_SetParameter(parameter, value, 0))
            _check(self._lib.espeak_ng_SetRandSeed(ctypes.c_long(1)))
            spoken = self._speak(*with_phonemes, pause, most)
        except (EspeakRefused, OSError) as error:
            return _reply(REFUSED, 0, f"{type(error).__name__}: {error}".encode())
        if spoken is None:
            return _reply(TOO_LONG)
        samples, marks = spoken
        stretched = b"" if stretch == 1.0 else self._stretch(samples, stretch)
        return _reply(SPOKEN, len(marks), b"".join(marks), samples, stretched, samples=len(samples))

    def _with_phonemes(self, text: str, path: str) -> tuple[bytes, list[int]] | None:
        """The text with phonemes in place of its IPA, and the place in the given text of each of its characters.

        None if the language has no sound that is near one of the IPA.
        """
        first, *others = text.split(IPA_START)
        if not others:
            return text.encode(), []
        if sum(other.find(IPA_END) for other in others) > MAX_IPA:
            return None
        # After a synthesis with this flag `_ipa` reads phonemes.
        self._lib.espeak_SetSynthCallback(_NO_AUDIO)
        _check(self._lib.espeak_Synth(b".", ctypes.c_size_t(2), 0, 0, 0, _CHARS_UTF8 | _PHONEMES, None, None))
        said, places = first, list(range(len(first)))
        for other in others:
            ipa, _, after = other.partition(IPA_END)
            found = phonemes(ipa, self._phonemes(path), self._ipa)
            if found is None:
                return None
            place = places[-1] + 1 if places else 0
            said += f"[[{found}]]{after}"
            places += [place] * (len(found) + 4) + [*range(place + 1, place + 1 + len(after))]
        return said.encode(), places

    def _phoneme_table(self, path: str) -> Table:
        """That of the language with this path, which is selected."""
        attributes = [line.split() for line in self._voice_text(path, "").decode().splitlines()]
        named = [line[1] for key in ("phonemes", "language") for line in attributes if line[:1] == [key]]
        tables = mnemonics(self._data)
        names = next((tables[name] for name in named if name in tables), frozenset[str]().union(*tables.values()))
        return phoneme_table(names, self._ipa)

    def _ipa(self, phonemes: str) -> str:
        """What phonemes sound like in the language that is selected."""
        text = ctypes.c_char_p(f"[[{phonemes}]]".encode())
        said: bytes | None = self._lib.espeak_TextToPhonemes(ctypes.byref(text), _CHARS_UTF8, _IPA)
        return (said or b"").decode("utf-8", "replace")

    def _speak(self, text: bytes, places: list[int], pause: int, most: int) -> tuple[bytes, list[bytes]] | None:
        """Samples and marks; None if there are more than `most` samples, which are not computed to their end."""
        pieces: list[bytes] = []
        marks: list[bytes] = []
        total = 0

        def collect(samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_Event]) -> int:
            nonlocal total
            for each in _events(events):
                place, length = each.text_position - 1, each.length
                if 0 <= place < len(places):
                    place, length = places[place], 1 if places.count(places[place]) > 1 else length
                marks.append(MARK.pack(each.type, place, length, each.sample))
            if samples and count > 0:
                pieces.append(ctypes.string_at(samples, 2 * count))
                total += count
            return int(0 <= most < total)

        callback = _SynthCallback(collect)
        self._lib.espeak_SetSynthCallback(callback)
        flags = _CHARS_UTF8 | (_ENDPAUSE if pause else 0) | (_PHONEMES if places else 0)
        _check(self._lib.espeak_Synth(text, ctypes.c_size_t(len(text) + 1), 0, 0, 0, flags, None, None))
        return None if 0 <= most < total else (b"".join(pieces), marks)

    def _stretch(self, samples: bytes, speed: float) -> bytes:
        """int16[n] as int16[n / speed] of the same pitch, for speeds beyond the rates of a voice."""
        count = len(samples) // 2
        room = int(count * max(1.0, 1 / speed)) + self.sample_rate
        buffer = ctypes.create_string_buffer(samples, 2 * room)
        one = ctypes.c_float(1.0)
        count = self._lib.sonicChangeShortSpeed(
            buffer, count, ctypes.c_float(speed), one, one, one, 0, self.sample_rate, 1
        )
        return buffer.raw[: 2 * count]

    def _select(self, path: str, variant: str) -> None:
        self._voice_file.seek(0)
        self._voice_file.truncate()
        self._voice_file.write(self._voice_text(path, variant))
        self._voice_file.flush()
        self._voice_file.seek(0)
        _check(self._lib.espeak_ng_SetVoiceByFile(f"/dev/fd/{self._voice_file.fileno()}".encode()))

    def _compose(self, path: str, variant: str) -> bytes:
        """A voice file: the language, then the variant's sound."""
        with open(os.path.join(self._data, "lang", path), encoding="utf-8") as file:
            text = file.read()
        if variant:
            with open(os.path.join(self._data, "voices", "!v", variant), encoding="utf-8") as file:
                lines = file.read().splitlines()
            text += "\n" + "\n".join(line for line in lines if not line.startswith(("language", "name", "gender")))
        return (text + _STEADY).encode()


# ---------------------------------------------------------------- phonemes

Table = Mapping[str, tuple[str, ...]]  # IPA -> phonemes of espeak-ng that sound like it, the shortest first

_TABLE = struct.Struct("<BBxx32s")  # count of phonemes, table that it extends, name
_PHONEME = struct.Struct("<4s7xB4x")  # mnemonic, type
_SOUNDS = range(2, 9)  # types: neither pauses nor stress
LONGEST_SOUND = 6  # characters
_STRESS = {"ˈ": ("'",), "ˌ": (",",)}
_MARKS = _STRESS | {"ː": (":",), "ʲ": (";",)}
# Other spellings of the same; "" is what says nothing to espeak-ng.
_SPELLINGS = {"g": "ɡ", ":": "ː", "'": "ˈ", ",": "ˌ", "ʤ": "dʒ", "ʧ": "tʃ", "ɝ": "ɜː"} | dict.fromkeys(
    "./|‿\u0361\u035c", ""
)
# Sounds that stand in for one another where a language lacks one, the likelier first.
_NEAR = (
    *("iɪɨy", "uʊɯʉ", "eɛø", "oɔɒ", "aɑæɐʌ", "əɜɚɐʌ", "œɛ"),
    *("rɹɾʁʀ", "lɫɭ", "nɲŋ", "hxχç", "ʃʂɕ", "ʒʐʑ", "vwʋ", "ɡɣ", "bβ", "sθ", "zð"),
)
_VOWELS = "iɪɨyʏuʊɯʉeɛøœoɔɒɤaɑæɐʌəɜɚɘɵ"
# A stress mark and the consonants that its syllable begins with: espeak-ng wants it before the vowel.
_STRESSED = re.compile(f"([ˈˌ])([^ˈˌ{_VOWELS}]+)(?=[{_VOWELS}])")


@lru_cache(maxsize=1)
def mnemonics(data: str) -> dict[str, frozenset[str]]:
    """For each table of phonemes, by its name, their names in espeak-ng."""
    with open(os.path.join(data, "phontab"), "rb") as file:
        content = file.read()
    place = 4
    tables: list[tuple[str, frozenset[str]]] = []
    for _ in range(content[0]):
        count, base, name = _TABLE.unpack_from(content, place)
        place += _TABLE.size
        entries = _PHONEME.iter_unpack(content[place : place + count * _PHONEME.size])
        place += count * _PHONEME.size
        names = {entry.rstrip(b"\0").decode("latin1") for entry, kind in entries if kind in _SOUNDS}
        inherited = tables[base - 1][1] if base else frozenset[str]()
        tables.append((name.partition(b"\0")[0].decode(), inherited | frozenset(filter(str.isprintable, names))))
    return dict(tables)


def phoneme_table(names: frozenset[str], say: Callable[[str], str]) -> Table:
    """What each phoneme sounds like in a language, alone and between others, as `say` tells."""
    found: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        for before, after in (("", ""), ("'", ""), ("p", "p"), ("a", "a")):
            whole = _sounds(say(f"{before}|{name}|{after}"))
            sound = whole.removeprefix(_sounds(say(before))).removesuffix(_sounds(say(after)))
            if sound and name not in found.setdefault(sound, []):
                found[sound].append(name)
    for sound in list(found):  # the nearest to the sound without its length or other marks
        found.setdefault(_plain(sound), found[sound])
    return {sound: tuple(names) for sound, names in found.items() if sound}


def phonemes(ipa: str, table: Table, say: Callable[[str], str]) -> str | None:
    """Phonemes of espeak-ng for words in IPA; None if the language has nothing near one of the sounds.

    What a phoneme sounds like depends on its neighbours. Of those that may sound like the IPA, the ones that do, as
    `say` tells, are chosen from left to right.
    """
    found = [_word(_normal(word), table, say) for word in ipa.split()]
    words = [word for word in found if word is not None]
    return " ".join(words) if len(words) == len(found) > 0 else None


def _word(wanted: str, table: Table, say: Callable[[str], str]) -> str | None:
    best, most = None, -1
    for longest in (LONGEST_SOUND, 1):  # as diphthongs where there are any, otherwise as their parts
        choices = _choices(wanted, table, longest)
        if not choices or len(wanted) > MAX_IPA_WORD:
            continue
        chosen = [names[0] for names in choices]
        equal = _equal(say("|".join(chosen)), wanted)
        for place, names in enumerate(choices):
            for name in names[1:]:
                if equal == len(wanted):
                    return "|".join(chosen)
                other = [*chosen[:place], name, *chosen[place + 1 :]]
                if (its := _equal(say("|".join(other)), wanted)) > equal:
                    chosen, equal = other, its
        if equal > most:
            best, most = "|".join(chosen), equal
    return best


def _choices(ipa: str, table: Table, longest: int) -> list[tuple[str, ...]] | None:
    """For each sound the phonemes that may sound like it; None if there is none near one of them."""
    found: list[tuple[str, ...]] = []
    while ipa:
        sound = next((ipa[:n] for n in range(longest, 0, -1) if ipa[:n] in table), ipa[0])
        near = (each for group in _NEAR if sound in group for each in group)
        names = _MARKS.get(sound) or next((table[one] for one in (sound, *near) if one in table), None)
        if names:
            found.append(names)
        elif _plain(sound):
            return None
        ipa = ipa[len(sound) :]
    return found


def _normal(ipa: str) -> str:
    plain = unicodedata.normalize("NFD", "".join(_SPELLINGS.get(char, char) for char in ipa))
    return _STRESSED.sub(r"\2\1", plain)


def _plain(sound: str) -> str:
    return "".join(char for char in sound if unicodedata.category(char) not in ("Mn", "Lm"))


def _sounds(ipa: str) -> str:
    return "".join(char for char in _normal(ipa) if char not in _STRESS)


def _equal(said: str, wanted: str) -> int:
    """How many leading characters are equal; as many as are wanted only if nothing follows."""
    said = _normal(said)
    if said == wanted:
        return len(wanted)
    equal = next((i for i, (mine, its) in enumerate(zip(said, wanted, strict=False)) if mine != its), len(wanted))
    return min(equal, len(wanted) - 1)


def _reply(status: int, count: int = 0, *parts: bytes, samples: int = 0) -> bytes:
    return b"".join((REPLY.pack(status, count, samples), *parts))


def _nameless_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("voice"), "w+b")
    return tempfile.TemporaryFile()


def _events(events: ctypes._Pointer[_Event]) -> Iterator[_Event]:
    i = 0
    while (event := events[i]).type != _LIST_END:
        yield event
        i += 1


def _check(status: int) -> None:
    if status != 0:
        raise EspeakRefused(f"espeak-ng status {status:#x}")


def _isolate(parent: int) -> None:
    """Die with the parent, ignore the signals that stop a node, drop no core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(_PR_SET_DUMPABLE, 0)  # a core_pattern with a pipe ignores the limit
        if os.getppid() != parent:  # it died before the call
            os._exit(0)


def _send(fd: int, reply: bytes) -> None:
    view = memoryview(LENGTH.pack(len(reply)) + reply)
    while view:
        view = view[os.write(fd, view) :]


def main() -> None:
    """Run the process until stdin ends."""
    parent, library, data = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    _isolate(int(parent))
    espeak = Library(library, data)
    _send(out, _reply(READY, espeak.sample_rate))
    with open(0, "rb") as requests:
        while head := requests.read(LENGTH.size):
            request = requests.read(*LENGTH.unpack(head))
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            reply = espeak.reply(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(out, reply)


if __name__ == "__main__":
    main()
