"""Reads a text with tags, in any split: text without them, and directives. Pure.

A tag changes what follows it: `<emotion value="sad"/>` up to the next one, `<prosody rate="fast">` up to `</prosody>`.
White space on both sides of a tag becomes that before it; a tag for a pause, a sentence or a paragraph parts words.
Thoughts and calls of tools are left out with what is in them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.text.chars import NOT_FIRST, is_word
from agent_tts.text.markup import inventory
from agent_tts.text.markup.scan import Not, Tag, broken, find, next_opener

MAX_SPAN = 128  # characters between the tags of a text with an alias or phonemes; a longer one is read as it is
MAX_DEPTH = 32  # tags that are open at once


@dataclass(frozen=True, slots=True)
class MarkTag:
    """A place whose time the client asks for."""

    name: str
    offset: int  # of its tag in the raw text


Item = str | Directive | MarkTag

_SENTENCE_ENDS = frozenset(".!?…。！？\"'”’)»")
_CLOSING = tuple(NOT_FIRST)
_WORD_OR_SPACE = re.compile(r"\s+|\S+")
_SPACE = re.compile(r"\s")
# What is left out behind a token, up to the next one; a role is one word.
_BEHIND_TOKENS = ("message", "header", "role")


@dataclass(frozen=True, slots=True)
class State:
    prosody: Prosody = field(default_factory=Prosody)
    style: Style = field(default_factory=lambda: Style(None))
    language: Language = field(default_factory=lambda: Language(None))

    def since(self, told: State) -> list[Directive]:
        """The directives that lead from `told` to this."""
        return [new for name in State.__match_args__ if (new := getattr(self, name)) != getattr(told, name)]


class Offsets:
    """Clean offsets to raw ones. Memory grows with the number of tags."""

    def __init__(self) -> None:
        # The offset in the clean text, and that in the raw one, at which each run of equal characters starts.
        self._clean = [0]
        self._raw = [0]
        self.length = 0  # length of the clean text

    def add(self, length: int, raw: int) -> None:
        """So many more clean characters, which start at offset `raw` of the raw text."""
        if self._raw[-1] + self.length - self._clean[-1] != raw:
            if self._clean[-1] == self.length:
                self._raw[-1] = raw
            else:
                self._clean.append(self.length)
                self._raw.append(raw)
        self.length += length

    @property
    def is_shifted(self) -> bool:
        return len(self._clean) > 1 or self._raw[0] > 0

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The raw offsets of a span with at least one character. Tags at its sides do not belong to it."""
        return self._at(start), self._at(end - 1) + 1

    def _at(self, clean: int) -> int:
        run = bisect_right(self._clean, clean) - 1
        return self._raw[run] + clean - self._clean[run]


class MarkupReader:
    """The items depend on the text and its flushes, not on its split, apart from how text is cut into items."""

    def __init__(self) -> None:
        self.offsets = Offsets()  # where the clean text is in the raw one
        # What may become a tag, the raw character before it, and the offset after it in the raw text.
        self._held = self._before = ""
        self._at = 0
        # Items not yet taken, and the text after them, in parts.
        self._items: list[Item] = []
        self._parts: list[str] = []
        # What tags have set, what of it has been told, and what the open ones will restore, innermost last.
        self._state = self._told = State()
        self._open: list[tuple[str, State]] = []
        # In `<sub>` and `<phoneme>`: how the text in it is said, where the tag began, and that text in parts with their
        # offsets. None outside of them.
        self._span: Say | None = None
        self._span_at = 0
        self._span_text: list[tuple[str, int]] = []
        self._spells = ""  # whether characters are spelled, and by which tag
        # What is left out, a block of this name or one of `_BEHIND_TOKENS`, "" for nothing; and the text of the header.
        self._block = self._header = ""
        # The last character of the clean text, and the last that is no white space; "" before the first.
        self._last = self._visible = ""
        # Whether no text has come since the last tag, and what parts the words around it.
        self._is_after_tag = False
        self._gap = ""

    def read(self, text: str) -> list[Item]:
        """More text; returns what it completes."""
        self._at += len(text)
        self._read(self._held + text, more=True)
        return self._take()

    def flush(self) -> list[Item]:
        """All text so far is complete words; only the start of a tag that will come to its end is still held back."""
        self._read(self._held, more=False)
        self._end_span()
        return self._take()

    def end(self) -> list[Item]:
        """No more text: returns everything that was held back, but the start of a tag."""
        self._read(self._held, more=False)
        if held := self._held:
            self._is_after_tag = True
            self._read(held[broken(held, 0) :], more=False)
        self._end_span()
        return self._take()

    # ------------------------------------------------------------ characters

    def _read(self, text: str, *, more: bool) -> None:
        origin, at = self._at - len(text), 0
        self._held = ""
        while at < len(text):
            opener = next_opener(text, at)
            if opener > at:
                self._text(text[at:opener], origin + at)
            at = opener
            if at == len(text):
                break
            before = text[at - 1] if at else self._before
            found = find(text, at, before, more=more)
            if isinstance(found, Tag) and self._tag(found, origin + at, before):
                at = found.end
            elif isinstance(found, Tag) or found is Not.TEXT:
                self._text(text[at], origin + at)
                at += 1
            else:
                self._held, self._before = text[at:], before
                return
        self._before = text[-1:] or self._before

    def _text(self, text: str, at: int) -> None:
        """Text outside of tags, at an offset in the raw text."""
        if self._block == "role" and (end := _SPACE.search(text)):
            text, at = text[end.start() :], at + end.start()
            self._block = ""
        if self._block == "header":
            self._header += text[: MAX_SPAN - len(self._header)]
        if self._block:
            return
        if self._span is not None:
            self._span_text.append((text, at))
            if sum(len(part) for part, _ in self._span_text) > MAX_SPAN:
                self._end_span(say=False)
            return
        if self._state != self._told and self._last.strip() and not self._gap and text.startswith(_CLOSING):
            bare = text.lstrip("".join(_CLOSING))  # a word's punctuation is spoken like the word
            self._put(text[: len(text) - len(bare)], at)
            text, at = bare, at + len(text) - len(bare)
        text, at = self._lead(text, at)
        if self._spells:
            self._spell(text, at)
        elif text:
            self._put(text, at)

    def _lead(self, text: str, at: int) -> tuple[str, int]:
        """What goes before the next text, and white space at its start; returns the rest of it with its offset."""
        if self._is_after_tag:
            left = text
            if not self._last or self._last.isspace():
                left = text.lstrip(" \t" if self._last and self._last != "\n" else None)
            at += len(text) - len(left)
            if not (text := left):
                return text, at
            self._is_after_tag = False
            if self._gap and self._last and not self._last.isspace() and not text[0].isspace():
                self._put(self._gap, at)
            self._gap = ""
        if self._state == self._told or not (bare := text.lstrip()):
            return text, at
        if bare != text:
            self._put(text[: len(text) - len(bare)], at)
        for directive in self._state.since(self._told):
            self._add(directive)
        self._told = self._state
        return bare, at + len(text) - len(bare)

    def _put(self, text: str, at: int, item: Say | None = None) -> None:
        """Append clean text, in an item of its own if there is one."""
        self.offsets.add(len(text), at)
        self._last = text[-1:] or self._last
        self._visible = text.rstrip()[-1:] or self._visible
        if item is None:
            self._parts.append(text)
        else:
            self._add(item)

    def _add(self, item: Directive | MarkTag) -> None:
        self._join()
        self._items.append(item)

    def _join(self) -> None:
        if self._parts:
            self._items.append("".join(self._parts))
            self._parts.clear()

    def _spell(self, text: str, at: int) -> None:
        for word in _WORD_OR_SPACE.finditer(text):
            gap = "" if not self._last or self._last.isspace() else " "
            spelled = gap + " ".join(ch.upper() if len(ch.upper()) == 1 else ch for ch in word[0])
            self._put(word[0], at + word.start(), None if word[0].isspace() else Say(word[0], spelled))

    def _take(self) -> list[Item]:
        self._join()
        items, self._items = self._items, []
        return items

    # ------------------------------------------------------------ tags

    def _tag(self, tag: Tag, at: int, before: str) -> bool:
        """Obey a tag behind the character `before`; returns whether it is one here. Otherwise it is HTML, or a word."""
        name = tag.name
        if name == "|" and self._block in ("", *_BEHIND_TOKENS):
            self._token(tag.attributes["name"])
            return True
        if self._block:
            if tag.closes and name == self._block:
                self._leave_out("")
            return True
        if name == "&":  # only in XML; elsewhere it is text
            if is_xml := self._is_open("speak") or self._span is not None:
                self._text(tag.attributes["text"], at)
            return is_xml
        if not (tag.closes or tag.is_empty or tag.attributes):
            if name in inventory.PROSE and not self._is_start():
                return False
            if name in inventory.TYPES and is_word(before) and not self._is_open("speak"):
                return False
        if name == "sub" and not ("alias" in tag.attributes or (tag.closes and self._is_open(name))):
            return False
        if name == "mark" and not ("name" in tag.attributes or (tag.closes and self._is_open(name))):
            return False
        if name == "![" and tag.closes and not self._is_open(name):
            return False
        if name in inventory.BLOCKS:
            self._leave_out("" if tag.closes or tag.is_empty else name)
        elif name in inventory.ROLES:
            self._leave_out("role")
        elif tag.closes:
            self._close(name)
        else:
            self._end_span(say=False)
            if not tag.is_empty:
                self._open = [*self._open[1 - MAX_DEPTH :], (name, self._state)]
            self._obey(name, tag.attributes, at, is_empty=tag.is_empty)
        self._is_after_tag = True
        return True

    def _token(self, name: str) -> None:
        """A token of a chat template. For whom a message is stands in its header."""
        if name == '"':  # a quote in a call
            return
        header, self._header = self._header, ""
        if name in inventory.ROLES:
            self._leave_out("role")
        elif name in inventory.HEADERS:
            self._header = header if self._block == "header" else ""
            self._leave_out("header")
        elif inventory.SILENT.fullmatch(name) or (name == "message" and re.search("analysis|to=", header)):
            self._leave_out("message")
        else:
            self._leave_out("")

    def _leave_out(self, block: str) -> None:
        """Leave out what follows, or nothing any more. The words on both sides are parted."""
        self._block = block
        self._part("")
        self._is_after_tag = True

    def _obey(self, name: str, given: dict[str, str], at: int, *, is_empty: bool) -> None:
        """An opening or empty tag."""
        match name:
            case "break" | "mstts:silence":
                self._pause(inventory.pause_ms(given))
            case "mark":
                self._add(MarkTag(given["name"][:MAX_SPAN], at))
            case "p" | "s":
                self._part(name)
            case "[":
                self._bracket(given["name"])
            case "\\" if "time" in given:
                self._pause(inventory.pause_ms(given))
            case "\\":
                self._say(given["word"], at, Say("", ipa=given["ph"] or None))
            case "expr":
                self._express(given, is_empty=is_empty)
            case "<<":
                self._say("", at, Say("", ipa=given["ph"].replace("|", "")))
            case "sub" | "phoneme":
                span = Say("", given.get("alias"), inventory.ipa(given))
                self._span, self._span_at = (span if span.alias or span.ipa else None), at
                if is_empty:
                    self._end_span()
            case "spell":
                self._spells = name
            case "say-as" if given.get("interpret-as") in inventory.SPELLED:
                self._spells = name
            case _:
                self._set(name, given)

    def _set(self, name: str, given: dict[str, str]) -> None:
        state, prosody = self._state, inventory.prosody(name, given, self._state.prosody)
        if name in inventory.MANNER_TAGS:
            state = replace(state, style=Style(inventory.instructions(name)))
        elif name in inventory.EXPRESSIVE:
            style = given.get("value", given.get("style", given.get("name", "")))
            state = replace(state, style=Style(inventory.instructions(style)))
        elif name == "lang" and (code := given.get("xml:lang", given.get("lang"))):
            state = replace(state, language=Language(code[:MAX_SPAN]))
        self._state = replace(state, prosody=prosody)

    def _express(self, given: dict[str, str], *, is_empty: bool) -> None:
        """LiveKit's tag, whose type says what it is."""
        label = given.get("label", "").strip()
        match given.get("type"):
            case "expression":
                self._set("expression", {"value": label})
            case "prosody":
                self._set(label.lower().replace(" ", "-"), {})
            case "break":
                self._pause(inventory.pause_ms({"time": label}))
            case "spell" if not is_empty:
                self._spells = "expr"

    def _bracket(self, name: str) -> None:
        if name in inventory.PAUSES_MS:
            self._pause(inventory.PAUSES_MS[name])
        elif name in inventory.STYLES:
            self._state = replace(self._state, style=Style(inventory.instructions(name)))

    def _is_start(self) -> bool:
        """Whether a line or a sentence begins here."""
        return self._last in ("", "\n") or self._visible in _SENTENCE_ENDS

    def _is_open(self, name: str) -> bool:
        return any(opened == name for opened, _ in self._open)

    def _close(self, name: str) -> None:
        if name == self._spells:
            self._spells = ""
        self._end_span(say=name in ("sub", "phoneme"))
        if name in ("p", "s"):
            self._part(name)
        while self._is_open(name):
            opened, state = self._open.pop()
            if opened == name:
                self._state = state
                break

    def _pause(self, ms: int) -> None:
        if ms:
            self._part("")
            self._add(Pause(ms))

    def _part(self, name: str) -> None:
        """Part the words on both sides. A paragraph, and a sentence without punctuation, end at a line break."""
        if name == "p" or (name == "s" and self._last.isalnum()):
            self._gap = "\n"
        else:
            self._gap = self._gap or " "

    def _end_span(self, *, say: bool = True) -> None:
        """The text with an alias or phonemes is complete; unless `say`, it is text without them."""
        span, self._span = self._span, None
        parts, self._span_text = self._span_text, []
        text = "".join(part for part, _ in parts)
        if span is not None and say:
            self._say(text, parts[0][1] if text.strip() else self._span_at, span)
        else:
            for text, at in parts:
                self._text(text, at)

    def _say(self, text: str, at: int, how: Say) -> None:
        """Text that is said in another way. Where there is none, what is said is the text."""
        text = text if text.strip() else how.alias or how.ipa or ""
        if not text:
            return
        text, at = self._lead(text, at)
        core = text.strip()
        before = text.index(core)
        if before:
            self._put(text[:before], at)
        self._put(core, at + before, replace(how, text=core))
        if rest := text[before + len(core) :]:
            self._put(rest, at + before + len(core))
