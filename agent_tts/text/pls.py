"""Reads and writes a lexicon in XML: W3C Pronunciation Lexicon Specification 1.0.

A document type, and so every entity but the five of XML, is refused; nothing is fetched. Of the lexemes of a word the
first counts, of its pronunciations the preferred one, otherwise the first; an alias beside a transcription is for
engines that do not speak IPA. Roles, languages and metadata are not used.
"""

from __future__ import annotations

from typing import NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from agent_tts.text.entries import MAX_ENTRIES, Entry, Lexicon
from agent_tts.text.phones import to_ipa

MAX_BYTES = 4 * 1024 * 1024
MAX_TEXT = 1_024  # characters of one element

NAMESPACE = "http://www.w3.org/2005/01/pronunciation-lexicon"


def read_pls(data: bytes) -> Lexicon:
    """The lexicon of a document.

    Raises:
        ValueError: it is larger than `MAX_BYTES`, no PLS document, has an alphabet that is not known, or an entry that
            `Entry` refuses; the message has the line.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"a PLS file has at most {MAX_BYTES} bytes")
    return Lexicon(_Reader().read(data).values())


def write_pls(lexicon: Lexicon, language: str = "en") -> bytes:
    """The document of a lexicon, whose words are in `language`; it cannot tell `match_case` and `whole_word`."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<lexicon version="1.0" xmlns="{NAMESPACE}" alphabet="ipa" xml:lang={quoteattr(language)}>',
    ]
    for entry in lexicon.entries:
        said = "".join(
            f"<{tag}>{escape(text)}</{tag}>"
            for tag, text in (("phoneme", entry.ipa), ("alias", entry.alias))
            if text is not None
        )
        lines.append(f"  <lexeme><grapheme>{escape(entry.written)}</grapheme>{said}</lexeme>")
    return "\n".join([*lines, "</lexicon>", ""]).encode()


class _Reader:
    def __init__(self) -> None:
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = lambda *_: self._fail("a document type is not allowed")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._entries: dict[str, Entry] = {}  # by word
        self._alphabet = "ipa"  # of the lexicon
        self._depth = 0
        # The lexeme's spellings, and its pronunciations as (preferred, ipa, alias).
        self._graphemes: list[str] = []
        self._said: list[tuple[bool, str | None, str | None]] = []
        # What the element that is being read has; the text is None where it does not matter.
        self._attributes: dict[str, str] = {}
        self._content: str | None = None

    def read(self, data: bytes) -> dict[str, Entry]:
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            raise ValueError(f"line {error.lineno}: no well-formed XML: {expat.ErrorString(error.code)}") from None
        except LookupError:
            raise ValueError("line 1: the encoding of the document is not known: use UTF-8") from None
        return self._entries

    def _fail(self, why: str) -> NoReturn:
        raise ValueError(f"line {self._parser.CurrentLineNumber}: {why}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        namespace, _, name = name.rpartition(" ")
        if self._depth == 1:
            if name != "lexicon" or namespace not in ("", NAMESPACE):
                self._fail("a PLS document is a <lexicon>")
            self._alphabet = attributes.get("alphabet", "ipa")
        elif name == "lexeme":
            self._graphemes, self._said = [], []
        elif name in ("grapheme", "phoneme", "alias"):
            self._attributes, self._content = attributes, ""

    def _text(self, text: str) -> None:
        if self._content is not None:
            self._content += text
            if len(self._content) > MAX_TEXT:
                self._fail(f"an element has at most {MAX_TEXT} characters")

    def _end(self, name: str) -> None:
        self._depth -= 1
        name = name.rpartition(" ")[2]
        text, self._content = " ".join((self._content or "").split()), None
        try:
            if name == "grapheme":
                self._graphemes.append(text)
                if len(self._graphemes) + len(self._entries) > 2 * MAX_ENTRIES:  # some may be the same word
                    raise ValueError(f"a lexicon has at most {MAX_ENTRIES} entries")
            elif name == "phoneme":
                ipa = to_ipa(text, self._attributes.get("alphabet", self._alphabet))
                self._said.append((self._attributes.get("prefer") == "true", ipa, None))
            elif name == "alias":
                self._said.append((self._attributes.get("prefer") == "true", None, text))
            elif name == "lexeme":
                self._add()
        except ValueError as error:
            self._fail(str(error))

    def _add(self) -> None:
        if not self._graphemes:
            raise ValueError("a lexeme has a grapheme")
        if not self._said:
            raise ValueError("a lexeme has an alias or a phoneme")
        said = sorted(self._said, key=lambda each: not each[0])  # stable: the first of equally preferred ones
        _, ipa, alias = said[0]
        if ipa is not None:
            alias = next((alias for _, _, alias in said if alias is not None), None)
        for written in self._graphemes:
            self._entries.setdefault(written, Entry(written, alias, ipa))
