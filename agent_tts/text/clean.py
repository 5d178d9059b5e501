"""Makes the output of an LLM speakable: a state machine that reads one character at a time.

Rules:
* emphasis, headings, bullets, block quotes, check boxes and rules lose their marks; list numbers stay;
* table cells are separated by commas;
* `code` is spoken; fenced code is dropped up to its closing fence, or to the end;
* a link becomes its text, an image its description, a bare URL its host name without "www.";
* HTML tags are dropped, entities become their characters, emoji become white space;
* special tokens of language models ("<|im_start|>", "<think>") are ordinary text.

Marks are judged by their neighbours alone ("2 * 3", "2*3", "snake_case" keep them), not by a partner that may come much
later, so that at most a tag (`MAX_TAG`) or a few marks are held back. Skipped text is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from html import unescape

from agent_tts.text.chars import NO_BREAK_SPACE, PICTOGRAPH, is_word, normal

MAX_TAG = 128  # characters of an HTML tag with its attributes
MAX_TARGET = 2_048  # characters of a link's target
_MAX_RUN = 7  # so many marks in a row are no markup but white space
_MAX_TAG_NAME = 12  # with its slash
_MAX_ENTITY = 10
_MAX_TRAILING = 8  # punctuation after a URL

# What an opening or closing tag becomes.
_TAGS = {
    **dict.fromkeys(["a", "abbr", "b", "cite", "code", "del", "em", "font", "i", "img", "ins", "kbd", "mark"], ""),
    **dict.fromkeys(["q", "s", "small", "span", "strong", "u", "var"], ""),
    **dict.fromkeys(["sub", "sup", "td", "th"], " "),
    **dict.fromkeys(["blockquote", "br", "center", "dd", "details", "div", "dl", "dt", "hr", "li", "ol", "p"], "\n"),
    **dict.fromkeys(
        ["h1", "h2", "h3", "h4", "h5", "h6", "pre", "summary", "table", "tbody", "thead", "tr", "ul"], "\n"
    ),
    "!": "",  # a comment
}
_TAG = re.compile(
    r"""</?([a-z0-9]+)(?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=]+))*\s*/?|<(!)--.*--""",
    re.ASCII | re.IGNORECASE,
)
_URL_STARTS = ("http://", "http://www.", "https://", "https://www.", "www.")
_URL_ENDERS = frozenset('<>"`|\\^{}[] \n')
_URL_TRAILING = frozenset(".,;:!?')*_~")
_CHECK_BOXES = ("[ ]", "[x]", "[X]")
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_PAUSES = frozenset(".!?;:,")

Mode = Callable[[str, int], None]
"""Reads a character at its offset. The empty string means: decide now, without a further character."""


class Cleaner:
    """Reads raw characters and passes speakable ones to `sink`, each with its offset in the raw text."""

    def __init__(self, sink: Mode) -> None:
        self._sink = sink
        self._mode: Mode = self._text  # reads the next character
        self._held: list[tuple[str, int]] = []  # characters that the mode cannot decide on yet
        self._before = " "  # the character before, for the marks after it
        self._passed = " "  # the last character given to the sink
        self._at_start = True  # of a line or a table cell: only its marks came so far
        self._in_table = False  # the line is a row of a table
        self._gap: int | None = None  # offset of white space in a table row that is passed on with the next text
        self._cell: int | None = None  # offset of the cell's bar, likewise
        self._brackets = 0  # open brackets that were passed on
        self._ticks = 0  # backticks in a row, up to the last character
        self._code = 0  # backticks that opened the code span
        self._fence_mark = ""  # the mark that opened the fenced code,
        self._fence_length = 0  # and how many
        self._fence_run = 0  # how many came in a row where they may close the code
        self._fence_head = False  # in the fence's first line
        self._fence_may_close = False  # the line has nothing else so far
        self._depth = 0  # parentheses open in a link's target
        self._skipped = 0  # characters of the target so far
        self._rules: dict[str, Mode] = {
            "": self._nothing,
            "\n": self._newline,
            "\\": partial(self._hold, self._escaped),
            "!": partial(self._hold, self._after_bang),
            "|": partial(self._hold, self._after_bar),
            "<": partial(self._hold, self._tag_name),
            "&": partial(self._hold, self._entity),
            "[": self._open_bracket,
            "]": self._close_bracket,
            ">": self._quote,
            ":": self._colon,
            **dict.fromkeys("*_~`", partial(self._hold, self._run)),
            **dict.fromkeys("#-+=•", self._line_mark),
            **dict.fromkeys("hHwW", self._url_letter),
        }

    def push(self, ch: str, offset: int) -> None:
        """The next raw character."""
        ch = normal(ch, self._before)
        if ch:
            self._mode(ch, offset)

    def flush(self, offset: int) -> None:
        """Decide on all that is held back. Code and link targets are still skipped afterwards."""
        self._mode("", offset)

    # ---------------------------------------------------------------- plain text

    def _text(self, ch: str, offset: int) -> None:
        self._rules.get(ch, self._pass)(ch, offset)

    def _nothing(self, ch: str, offset: int) -> None:
        pass

    def _pass(self, ch: str, offset: int) -> None:
        """Pass a character on as text."""
        self._before = ch
        if ch.isspace() or ch == PICTOGRAPH:
            if self._in_table:
                self._gap = offset if self._gap is None else self._gap
            else:
                self._give(NO_BREAK_SPACE if ch == NO_BREAK_SPACE else " ", offset)
            return
        self._at_start = False
        if self._cell is not None:
            if self._passed not in _PAUSES:
                self._give(",", self._cell)
            self._give(" ", self._cell)
        elif self._gap is not None:
            self._give(" ", self._gap)
        self._cell = self._gap = None
        self._give(ch, offset)

    def _give(self, ch: str, offset: int) -> None:
        self._passed = ch
        self._sink(ch, offset)

    def _newline(self, ch: str, offset: int) -> None:
        self._give("\n", offset)
        self._before = "\n"
        self._at_start = True
        self._in_table = False
        self._cell = self._gap = None
        self._brackets = 0

    # ---------------------------------------------------------------- holding back

    def _hold(self, mode: Mode, ch: str, offset: int) -> None:
        """Hold the character back: `mode` decides on it by the characters that follow."""
        self._held.append((ch, offset))
        self._mode = mode

    def _unhold(self) -> list[tuple[str, int]]:
        """Return to plain text; returns what was held."""
        held, self._held = self._held, []
        self._mode = self._text
        return held

    def _held_text(self) -> str:
        return "".join(ch for ch, _ in self._held)

    def _pass_all(self, held: list[tuple[str, int]]) -> None:
        for ch, offset in held:
            self._pass(ch, offset)

    def _reread(self, held: list[tuple[str, int]], ch: str, offset: int) -> None:
        for held_ch, held_offset in held:
            self._mode(held_ch, held_offset)
        self._mode(ch, offset)

    def _give_up(self, ch: str, offset: int) -> None:
        """The first held character was text after all: pass it on and read the rest again."""
        first, *rest = self._unhold()
        self._pass(*first)
        self._reread(rest, ch, offset)

    # ---------------------------------------------------------------- marks

    def _line_mark(self, ch: str, offset: int) -> None:
        if self._at_start:
            self._hold(self._run, ch, offset)
        else:
            self._pass(ch, offset)

    def _run(self, ch: str, offset: int) -> None:
        """In a run of one mark."""
        mark = self._held[0][0]
        if ch == mark:
            if len(self._held) < _MAX_RUN:
                self._held.append((ch, offset))
            return
        run = self._unhold()
        if mark == "`" or (mark == "~" and len(run) >= 3 and self._at_start):
            self._open_code(mark, len(run), run[0][1])
        elif len(run) == _MAX_RUN:
            self._pass(" ", run[0][1])
        elif not self._is_markup(mark, len(run), ch):
            self._pass_all(run)
        self._mode(ch, offset)

    def _is_markup(self, mark: str, count: int, after: str) -> bool:
        if self._at_start:
            if mark == "•" or (mark in "*-+" and count == 1 and after.isspace()):
                return True  # a bullet
            if mark in "*-_=" and count >= (2 if mark == "*" else 3):
                return True  # a rule, the line under a heading, or bold
            if mark == "#" and after.isspace():
                return True  # a heading
            if mark == "-" and self._in_table and after in ("|", ":", " "):
                return True  # the rule under a table's head, or an empty cell
        return mark in "*_~" and not _is_spoken(mark, count, self._before, after)

    def _escaped(self, ch: str, offset: int) -> None:
        if ch in _ESCAPABLE:
            self._unhold()
            self._pass(ch, offset)
        elif ch == "\n":
            self._unhold()
            self._text(ch, offset)
        else:
            self._give_up(ch, offset)

    def _quote(self, ch: str, offset: int) -> None:
        if not self._at_start:
            self._pass(ch, offset)

    # ---------------------------------------------------------------- tables

    def _after_bar(self, ch: str, offset: int) -> None:
        bar, start = self._unhold()[0]
        if self._at_start:
            self._in_table = True
        elif self._in_table:
            self._cell = start
            self._at_start = True
        elif self._before.isspace() and ch.isspace():
            self._pass(",", start)
        else:
            self._pass(bar, start)
        self._before = bar
        self._mode(ch, offset)

    def _colon(self, ch: str, offset: int) -> None:
        if not (self._in_table and self._at_start):  # "|:---:|"
            self._pass(ch, offset)

    # ---------------------------------------------------------------- code

    def _open_code(self, mark: str, count: int, offset: int) -> None:
        if count < 3:
            self._code = count
            self._mode = self._code_span
            return
        self._give("\n", offset)
        self._fence_mark = mark
        self._fence_length = count
        self._fence_run = 0
        self._fence_head = self._fence_may_close = True
        self._mode = self._fenced_code

    def _code_span(self, ch: str, offset: int) -> None:
        if ch == "`":
            self._ticks += 1
            return
        closed = self._ticks == self._code or ch == "\n"
        self._ticks = 0
        if closed:
            self._mode = self._text
            self._mode(ch, offset)
        elif ch:
            self._pass(ch, offset)

    def _fenced_code(self, ch: str, offset: int) -> None:
        """A run as long as the first closes it: anywhere in the first line, alone at the start of a later one."""
        if ch == self._fence_mark and self._fence_may_close:
            self._fence_run += 1
            return
        if self._fence_run >= self._fence_length and (self._fence_head or not ch.isalnum()):
            self._before = " "
            self._mode = self._text
            self._mode(ch, offset)
            return
        self._fence_run = 0
        if ch == "\n":
            self._fence_head = False
            self._fence_may_close = True
        elif ch and ch != ">" and not ch.isspace() and not self._fence_head:  # ">": the code may be in a block quote
            self._fence_may_close = False

    # ---------------------------------------------------------------- links

    def _after_bang(self, ch: str, offset: int) -> None:
        bang = self._unhold()[0]
        if ch != "[" or is_word(self._before):
            self._pass(*bang)
        self._mode(ch, offset)

    def _open_bracket(self, ch: str, offset: int) -> None:
        if is_word(self._before):  # array[0]
            self._brackets += 1
            self._pass(ch, offset)
        elif self._at_start:
            self._hold(self._check_box, ch, offset)
        elif self._before in _PAUSES:  # a source after a sentence.[1]
            self._pass(" ", offset)

    def _check_box(self, ch: str, offset: int) -> None:
        if ch and any(box.startswith(self._held_text() + ch) for box in _CHECK_BOXES):
            self._held.append((ch, offset))
            return
        held = self._unhold()
        is_box = len(held) == 3 and ch.isspace()
        self._reread([] if is_box else held[1:], ch, offset)

    def _close_bracket(self, ch: str, offset: int) -> None:
        if self._brackets:
            self._brackets -= 1
            self._pass(ch, offset)
        else:
            self._hold(self._after_bracket, ch, offset)

    def _after_bracket(self, ch: str, offset: int) -> None:
        bracket = self._unhold()[0]
        if ch == "(":
            self._depth = 1
            self._skipped = 0
            self._mode = self._target
            return
        if ch == "[":  # "[1][2]" is not twelve
            self._pass(" ", bracket[1])
        self._mode(ch, offset)

    def _target(self, ch: str, offset: int) -> None:
        """In the parentheses of a link, which a line break ends as well."""
        self._skipped += 1
        self._depth += (ch == "(") - (ch == ")")
        if ch == "\n" or self._skipped > MAX_TARGET:
            self._mode = self._text
            self._mode(ch, offset)
        elif not self._depth:
            self._mode = self._text

    # ---------------------------------------------------------------- HTML

    def _tag_name(self, ch: str, offset: int) -> None:
        first = len(self._held) == 1
        if len(self._held) <= _MAX_TAG_NAME and (ch.isalnum() or (first and ch in ("/", "!"))):
            self._held.append((ch, offset))
            return
        name = self._held_text()[1:].removeprefix("/").lower()
        if first and ch == "|":
            self._hold(self._special_token, ch, offset)
        elif name in _TAGS:
            self._mode = self._tag_attributes
            self._mode(ch, offset)
        elif name in ("http", "https") and ch == ":":
            (_, start), *address = self._unhold()
            self._pass(" ", start)
            self._reread(address, ch, offset)
        else:
            self._give_up(ch, offset)

    def _tag_attributes(self, ch: str, offset: int) -> None:
        if ch == ">" and (tag := _TAG.fullmatch(self._held_text())):
            left = _TAGS[(tag[1] or tag[2]).lower()]
            self._text(left, self._unhold()[0][1])
        elif ch in ("", "\n", "<", ">") or len(self._held) == MAX_TAG:
            self._give_up(ch, offset)
        else:
            self._held.append((ch, offset))

    def _special_token(self, ch: str, offset: int) -> None:
        """In a token like "<|im_start|>", whose marks are no markup."""
        if ch == ">" and len(self._held) > 2 and self._held[-1][0] == "|":
            self._pass_all([*self._unhold(), (ch, offset)])
        elif len(self._held) < MAX_TAG and (ch.isalnum() or ch in ("_", "-", "|")):
            self._held.append((ch, offset))
        else:
            self._give_up(ch, offset)

    def _entity(self, ch: str, offset: int) -> None:
        value = unescape(self._held_text() + ch) if ch == ";" else ""
        if len(value) == 1:
            start = self._unhold()[0][1]
            if plain := normal(value, self._before):
                self._pass(plain, start)
        elif len(self._held) < _MAX_ENTITY and (ch.isalnum() or ch == "#"):
            self._held.append((ch, offset))
        else:
            self._give_up(ch, offset)

    # ---------------------------------------------------------------- URLs

    def _url_letter(self, ch: str, offset: int) -> None:
        if is_word(self._before) or self._before in ("@", "/", ".", "_", "-"):
            self._pass(ch, offset)
        else:
            self._hold(self._url_start, ch, offset)

    def _url_start(self, ch: str, offset: int) -> None:
        text = (self._held_text() + ch).lower()
        if ch and any(start.startswith(text) for start in _URL_STARTS):
            self._held.append((ch, offset))
            return
        start = max((start for start in _URL_STARTS if text.startswith(start)), key=len, default="")
        held = self._unhold()
        if start and is_word(text[len(start) : len(start) + 1]):
            self._mode = self._host
            self._reread(held[len(start) :], ch, offset)
        else:
            self._pass_all(held)
            self._mode(ch, offset)

    def _host(self, ch: str, offset: int) -> None:
        if is_word(ch) or ch in ("-", "."):
            self._pass(ch, offset)
        else:
            self._mode = self._rest_of_url
            self._mode(ch, offset)

    def _rest_of_url(self, ch: str, offset: int) -> None:
        """Skips the rest, except for the punctuation at its end, which belongs to the sentence."""
        if ch in _URL_TRAILING:
            if len(self._held) < _MAX_TRAILING:
                self._held.append((ch, offset))
        elif not ch or ch in _URL_ENDERS or (ch > "\x7f" and not is_word(ch)):
            self._reread(self._unhold(), "" if ch == ">" else ch, offset)
        else:
            self._held.clear()


def _is_spoken(mark: str, count: int, before: str, after: str) -> bool:
    """Whether a run of *, _ or ~ is text, judged by the characters on both sides of it."""
    if mark == "~":
        return count == 1  # "~5 minutes"
    if before.isspace() and after in (" ", NO_BREAK_SPACE):
        return count <= 2 if mark == "*" else count == 1  # "2 * 3"
    if not (is_word(before) and is_word(after)):
        return False
    return mark == "_" or count == 1 or after.isdigit()  # "snake_case", "2*3", "x**2"
