"""Makes the output of an LLM speakable: a state machine that reads one character at a time.

Rules:
* emphasis, headings, bullets, block quotes, check boxes and rules lose their marks; list numbers stay;
* table cells are separated by commas;
* `code` is spoken; fenced code is dropped up to its closing fence, or to the end;
* a link becomes its text, an image its description, a bare URL its host name without "www.";
* HTML tags are dropped, entities become their characters, emoji become white space;
* special tokens of language models ("<|im_start|>", "<think>") are text, if the front has left them in.

Marks are judged by what is beside and before them ("2 * 3", "5*", "snake_case" keep them), not by a partner that may
come much later, so that at most a tag (`MAX_TAG`) or a few marks are held back. Skipped text is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from html import unescape
from unicodedata import category

from agent_tts.text import latex
from agent_tts.text.breaks import Breaks
from agent_tts.text.chars import ARROW, NO_BREAK_SPACE, PICTOGRAPH, Char, Sink, is_word, normal, spread
from agent_tts.text.data import data, words

MAX_TAG = 128  # characters of an HTML tag with its attributes
MAX_TARGET = 2_048  # characters of a link's target
_MAX_RUN = 7  # so many marks in a row are no markup but white space
_MAX_TAG_NAME = 12  # with its slash
_MAX_ENTITY = 10
_MAX_TRAILING = 8  # punctuation after a URL

# What an opening or closing tag becomes; "!" is a comment.
_TAGS = {"!": ""}
for _kind, _said in (("nothing", ""), ("space", " "), ("line", "\n")):
    _TAGS |= dict.fromkeys(words(data("markup/names")["html"][_kind]), _said)
_TAG = re.compile(
    r"""</?([a-z0-9]+)(?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=]+))*\s*/?|<(!)--.*--""",
    re.ASCII | re.IGNORECASE,
)
_URL_STARTS = ("http://", "http://www.", "https://", "https://www.", "www.")
_URL_ENDERS = frozenset('<>"`|\\{}[] \n')
_URL_TRAILING = frozenset(".,;:!?')*_~")
_CHECK_BOXES = (" ", "x", "X")  # in brackets
_IN_BRACKETS = "0123456789,;–-^ xX"
_CITATION = re.compile(r"\^?[1-9]\d{0,2}(?: ?[,;–-] ?\^?[1-9]\d{0,2})*")
_MAX_CITATION = 24
# A number in brackets behind these is a key: "Press [1] or [2]".
_BEFORE_A_KEY = re.compile(
    "press|dial|enter|type|choose|select|option|key|button|drücken?|sie|wählen?|taste|sur|tapez|touche|puls[ae]|oprima|"
    "presion[ae]|mar(?:que|ca)|tecla|prem[ia]|digit[iae]|tasto|pressione|aperte|disque|нажмите|наберите|кнопку|цифру"
)
_BEFORE_A_CODE = re.compile(f"{_BEFORE_A_KEY.pattern}|use|code")
_CODE_GOES_ON = re.compile(r"#.$|\*\+$")  # "*31#+49"
_MAX_CODE = 12  # of keys
_MAX_COMMAND = 16  # letters
# What no formula between dollars has: a long word, words, the end of a sentence.
_PROSE = re.compile(r"(?<![\\{A-Za-z])[^\W\d_]{4}$|\s[^\W\d_]{3}$|[.;:!?]\s$")
# The begin of a script of a formula, as far as it goes.
_SCRIPT = re.compile(r"[_^](?:[-−+]?(?:\d*|[^\W\d_])|\\[A-Za-z]*|\{)")
# The last word so far: a rating or a code, whose star closes no emphasis; an address, or the name of a file.
_RATING = re.compile(r"[*#][*#\d]+|[(\"'“‘]?(?:\d(?:[.,]\d)?(?:[-–/]\d)?|[A-Z])")
_ADDRESS = re.compile(r"[^\W_]\.[^\W\d_]{2}|@")
_LETTERS = re.compile("[a-z]*")
_QUOTES = frozenset("\"'“”‘’()[]")
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_PAUSES = frozenset(".!?;:,")

# Reads a character in plain text; the mode that reads the next ones, if any.
Rule = Callable[["Cleaner", str, int], "Mode | None"]
Mode = Generator[None, Char, list[Char]]
"""Is sent the next characters; "" means: decide now, without a further one. Returns those to be read in plain text."""


class Cleaner:
    """Reads raw characters and passes speakable ones to `sink`, each with its offset in the raw text.

    `letters` takes several letters of a word at once, with the offset of the first; without it, they come one by one.
    """

    def __init__(self, sink: Sink, language: str = "en", letters: Sink | None = None) -> None:
        self._breaks = Breaks(sink, letters)
        self._language = language  # of formulas, a code
        self._mode: Mode | None = None  # reads the next character; None in plain text
        self._before = " "  # the character before, for the marks after it
        self._at_start = True  # of a line or a table cell: only its marks came so far
        self._in_table = False  # the line is a row of a table
        self._gap: int | None = None  # offset of white space in a table row that is passed on with the next text
        self._cell: int | None = None  # offset of the cell's bar, likewise
        self._brackets = 0  # open brackets that were passed on
        self._emphasis = 0  # stars of emphasis that is open in this paragraph: 1, 2, or both
        self._has_keys = False  # a number in brackets, or behind a star, was a key in this line
        self._folds = False  # white space that comes next is left out
        self._returned = False  # the last character was a carriage return

    def read(self, text: str, offset: int) -> None:
        """The same as `push` for each character; the rest of a word is nearly always plain text, and goes at once."""
        at = 0
        while at < len(text):
            ch = text[at]
            self.push(ch, offset + at)
            at += 1
            if self._mode is None and self._before == ch and "a" <= ch <= "z":
                rest = _LETTERS.match(text, at)[0]  # pyrefly: ignore[unsupported-operation]
                if rest and self._breaks.pass_letters(rest, offset + at):
                    at += len(rest)
                    self._before = rest[-1]

    def push(self, ch: str, offset: int) -> None:
        returned, self._returned = self._returned, ch == "\r"
        ch = "" if returned and ch == "\n" else normal(ch, self._before)
        if ch:
            self._read(ch, offset)

    def flush(self, offset: int) -> None:
        """Decide on all that is held back. Code and link targets are still skipped afterwards."""
        self._read("", offset)
        self._breaks.flush()

    def close(self) -> None:
        """Leave what is open: its generator refers to this cleaner, and only the collector would free the two."""
        if self._mode:
            self._mode.close()
            self._mode = None

    def _read(self, ch: str, offset: int) -> None:
        if self._mode is None:
            self._mode = _RULES.get(ch, Cleaner._pass)(self, ch, offset)
            if self._mode is not None:
                next(self._mode)  # up to its first character
            return
        try:
            self._mode.send((ch, offset))
        except StopIteration as end:
            self._mode = None
            for again in end.value:
                self._read(*again)

    # ---------------------------------------------------------------- plain text

    def _pass(self, ch: str, offset: int) -> None:
        self._before = ch
        if ch.isspace() or ch == PICTOGRAPH:
            if self._folds:
                return
            if self._in_table:
                self._gap = offset if self._gap is None else self._gap
            else:
                self._breaks.push(NO_BREAK_SPACE if ch == NO_BREAK_SPACE else " ", offset)
            return
        self._at_start = self._folds = False
        if self._cell is not None:
            self._breaks.pause(self._cell)
            self._breaks.push(" ", self._cell)
        elif self._gap is not None:
            self._breaks.push(" ", self._gap)
        self._cell = self._gap = None
        self._breaks.push(ch, offset)

    def _pass_all(self, chars: list[Char]) -> None:
        for ch, offset in chars:
            self._pass(ch, offset)

    def _give_up(self, held: list[Char]) -> list[Char]:
        """The first character was text after all; returns the rest, which is read again."""
        self._pass(*held[0])
        return held[1:]

    def _newline(self, _: str, offset: int) -> None:
        self._breaks.end_line(offset)
        if self._before == "\n":
            self._emphasis = 0
        self._before = "\n"
        self._at_start = True
        self._in_table = self._folds = self._has_keys = False
        self._cell = self._gap = None
        self._brackets = 0

    # ---------------------------------------------------------------- marks

    def _line_mark(self, ch: str, offset: int) -> Mode | None:
        if self._at_start or (ch in "-=" and self._before.isspace()):
            return self._run(ch, offset)
        self._pass(ch, offset)
        return None

    def _run(self, mark: str, start: int) -> Mode:
        run = [(mark, start)]
        while (after := (yield))[0] == mark:
            if len(run) < _MAX_RUN:
                run.append(after)
        if mark == "`" or (mark == "~" and len(run) >= 3 and self._at_start):
            code = self._code_span(len(run), after) if len(run) < 3 else self._fenced_code(*run[0], len(run), after)
            return (yield from code)
        below = after[0] == "{" or (after[0].isdecimal() and _is_letter(self._breaks.word))
        if mark == "_" and len(run) == 1 and below and is_word(self._before):
            held = [*run, after]
            is_whole = yield from self._group(held, mark)
            return self._say_formula(_text(held[:-1]), held) if is_whole else self._give_up(held)
        if mark == "*" and not (is_word(self._before) and is_word(after[0])):
            if self._before.isspace() or self._before in _QUOTES:
                if len(run) < _MAX_RUN and not (self._at_start and after[0].isspace()):
                    return (yield from self._stars(run, after))
            else:
                said, self._emphasis = len(run) & ~self._emphasis, self._emphasis & ~len(run)
                if _RATING.fullmatch(self._breaks.word):
                    self._pass_all(run[:said])
                    return [after]
        if mark in "-=" and after[0] == ">" and self._before.isspace():
            if not (behind := (yield))[0].isspace():
                self._pass_all([*run, after])
            else:
                self._arrow(mark, start)
            return [behind]
        if len(run) == _MAX_RUN:
            self._pass(" ", start)
        elif not self._is_markup(mark, len(run), after[0]):
            self._pass_all(run)
        return [after]

    def _is_markup(self, mark: str, count: int, after: str) -> bool:
        if self._at_start:
            if mark == "•" or (mark in "*-+" and count == 1 and after.isspace()) or (mark == "#" and after.isspace()):
                self._breaks.prose = False
                return True  # a bullet, or a heading
            if mark in "*-_=" and count >= (2 if mark == "*" else 3):
                return True  # a rule, the line under a heading, or bold
            if mark == "-" and self._in_table and after in ("|", ":", " "):
                return True  # the rule under a table's head, or an empty cell
        return mark in "*_~" and not _is_spoken(mark, count, self._before, after)

    def _stars(self, run: list[Char], after: Char) -> Mode:
        """Of a key or a code: "Press *.", "Dial *67 first", "**21*", one of "***21#**"; not "*1984*", "**24 h**"."""
        held = [after]
        while held[-1][0] and held[-1][0] in "0123456789#*" and len(held) < _MAX_CODE:
            held.append((yield))
        code, end = _text(held[:-1]), held[-1][0]
        if end in _PAUSES and not (code and end == ":"):
            held.append((yield))
        count, closing, alone = len(run), len(code) - len(code.rstrip("*")), end != " " and not self._at_start
        behind = held[-1][0]
        if behind and not behind.isspace() and behind not in _QUOTES and not _CODE_GOES_ON.search(code + behind):
            said = 0
        elif not code:
            said = count if count == 1 or _is_spoken("*", count, self._before, end) else 0
        elif closing:
            said = max(0, count - closing) if count > 2 else count if count != closing and len(code) > 2 else 0
        else:
            dialled = self._has_keys or _BEFORE_A_CODE.fullmatch(self._breaks.last_word.lower())
            self._has_keys = "#" in code or (count == 1 and bool(dialled or alone or end in ("", "\n")))
            said = count if self._has_keys else 0
        self._emphasis |= count - said
        self._pass_all(run[:said])
        return held

    def _arrow(self, _: str, offset: int) -> None:
        if not self._at_start:
            if self._gap is not None:  # of a table
                self._breaks.push(" ", self._gap)
                self._gap = None
            self._breaks.pause(offset)
            self._breaks.push(" ", offset)
        self._folds = True

    def _escape(self, backslash: str, start: int) -> Mode:
        ch, offset = yield
        if ch and ch in "([":
            return (yield from self._formula(start, {"(": r"\\\)", "[": r"\\\]"}[ch]))
        if ch in _ESCAPABLE:
            self._pass(ch, offset)
            return []
        if ch.isascii() and ch.isalpha() and self._before not in ":\\" and not self._before.isalpha():
            return (yield from self._command(start, (ch, offset)))
        if ch != "\n":
            self._pass(backslash, start)
        return [(ch, offset)]

    def _quote(self, mark: str, start: int) -> Mode:
        """At the start of a line a quote, unless it compares: ">90%", and in an item or a cell "> 90%"; between words
        an arrow: "Settings > Privacy".
        """
        held = [(yield)]
        if held[0][0].isspace() and (not self._breaks.prose if self._at_start else self._before.isspace()):
            held.append((yield))
        ch, word = held[-1][0], self._breaks.last_word
        if not self._at_start and len(held) > 1 and ch.isupper() and len(word) > 1 and word.isalpha():
            self._arrow(mark, start)
        elif not self._at_start or (ch and (ch.isnumeric() or ch in "=.~≈±" or category(ch) == "Sc")):
            self._pass(mark, start)
        return held

    # ---------------------------------------------------------------- formulas

    def _dollar(self, dollar: str, start: int) -> Mode:
        after = yield
        if after[0] == "$":
            third = yield
            if self._at_start or (third[0] != "$" and not third[0].isspace() and self._before.isspace()):
                return (yield from self._formula(start, r"\$\$", third))
            self._pass_all([(dollar, start), after])
            return [third]
        if not after[0] or after[0].isspace() or is_word(self._before):
            self._pass(dollar, start)
            return [after]
        held = [after]
        while held[-1][0] not in ("", "\n", "$") and len(held) < MAX_TAG and not _PROSE.search(_text(held[-6:])):
            held.append((yield))
        if held[-1][0] == "$" and not held[-2][0].isspace():
            held.append((yield))
            if not is_word(held[-1][0]):
                return self._say_formula(_text(held[:-2]), held)
        self._pass(dollar, start)
        return held

    def _formula(self, start: int, closer: str, *first: Char) -> Mode:
        """Between delimiters that nothing else has, up to a pattern; what is too long, is left out."""
        held, text = [("", start), *first], _text(list(first))
        for _ in range(MAX_TARGET):
            after = yield
            text = (text + after[0])[-MAX_TAG:]
            if not after[0] or re.search(f"{closer}$", text):
                break
            if len(held) < MAX_TAG:
                held.append(after)
        formula = re.sub(f"{closer}$", "", text) if len(text) < MAX_TAG else "\\"
        return self._say_formula(formula, [*held, (yield) if after[0] else after])  # pyrefly: ignore[unbound-name]

    def _command(self, start: int, first: Char) -> Mode:
        """A command of LaTeX outside of a formula, with its groups in braces."""
        held = [first]
        while held[-1][0].isascii() and held[-1][0].isalpha() and len(held) < _MAX_COMMAND:
            held.append((yield))
        name = _text(held[:-1])
        if name == "begin":
            return (yield from self._formula(start, r"\\end\{\w+\*?\}", held[-1]))
        wanted, given, is_whole = latex.GROUPS.get(name, MAX_TAG), 0, True
        while is_whole and (opener := held[-1][0]) and opener in ("{[_^" if given < wanted else "_^"):
            given += opener == "{"
            is_whole = yield from self._group(held)
        if not is_whole or (given < wanted if name in latex.GROUPS else len(held) == len(name) + 1):
            self._pass("\\", start)
            return held
        return self._say_formula(f"\\{_text(held[:-1])}", held)

    def _power(self, mark: str, start: int) -> Mode:
        """x^2, 10^{-3}; a letter only above another one."""
        held = [(mark, start)]
        raised = (is_word(self._before) or self._before == ")") and not _ADDRESS.search(self._breaks.word)
        is_whole = raised and (yield from self._group(held))
        if is_whole and (_is_letter(self._breaks.word) or not held[-2][0].isalpha() or not self._before.isalpha()):
            return self._say_formula(f"^{{{_text(held[1:-1]).strip('{}')}}}", held)
        self._pass(mark, start)
        return held[1:] or [(yield)]

    def _group(self, held: list[Char], text: str = "") -> Generator[None, Char, bool]:
        """Read on behind the last of `held`, a bracket or the mark of a script, up to what comes after the group.

        Returns whether it is whole.
        """
        depth = 0
        while True:
            ch = held[-1][0]
            text, depth = text + ch, depth + (ch in "{[") - (ch in "}]")
            held.append((yield))
            after = held[-1][0]
            if depth and (after in ("", "\n") or len(held) > MAX_TAG):
                return False
            if not depth and not (after and text[-1] not in "}]" and _SCRIPT.fullmatch(text + after)):
                return text[-1] in "}]" or text[-1].isalnum()

    def _say_formula(self, formula: str, held: list[Char]) -> list[Char]:
        """Say it in words at the offsets of `held`, whose last character comes behind it and is read next."""
        words, after = latex.said(formula, self._language), held[-1]
        if words and (is_word(self._before) or self._before == ")"):
            self._pass(" ", held[0][1])
        self._pass_all(spread(words, [offset for _, offset in held[:-1]]) if words else [])
        if words and is_word(after[0]):
            self._pass(" ", held[-2][1])
        self._folds = self._folds or (not words and self._before.isspace())
        return [after]

    # ---------------------------------------------------------------- tables

    def _bar(self, bar: str, start: int) -> Mode:
        after = yield
        if self._at_start:
            self._in_table = True
            self._breaks.prose = False
        elif self._in_table:
            self._cell = start
            self._at_start = True
        else:
            self._pass("," if self._before.isspace() and after[0].isspace() else bar, start)
        self._before = bar
        return [after]

    def _colon(self, ch: str, offset: int) -> None:
        if not (self._in_table and self._at_start):  # "|:---:|"
            self._pass(ch, offset)

    # ---------------------------------------------------------------- code

    def _code_span(self, count: int, first: Char) -> Mode:
        """Code after `count` backticks; `first` is its first character."""
        (ch, offset), ticks = first, 0
        while True:
            if ch == "`":
                ticks += 1
            elif ticks == count or ch == "\n":
                return [(ch, offset)]
            else:
                ticks = 0
                if ch:
                    self._pass(ch, offset)
            ch, offset = yield

    def _fenced_code(self, mark: str, start: int, length: int, first: Char) -> Mode:
        """A run as long as the first closes it: anywhere in the first line, alone at the start of a later one."""
        self._breaks.end_line(start)
        (ch, offset), run = first, 0
        in_head = may_close = True
        while True:
            if ch == mark and may_close:
                run += 1
            elif run >= length and (in_head or not ch.isalnum()):
                self._before = " "
                return [(ch, offset)]
            else:
                run = 0
                if ch == "\n":
                    in_head, may_close = False, True
                elif ch and ch != ">" and not ch.isspace() and not in_head:  # ">": it may be in a block quote
                    may_close = False
            ch, offset = yield

    # ---------------------------------------------------------------- links

    def _bang(self, bang: str, start: int) -> Mode:
        after = yield
        if after[0] != "[" or is_word(self._before):
            self._pass(bang, start)
        return [after]

    def _open_bracket(self, bracket: str, start: int) -> Mode:
        held = [(yield)]
        while held[-1][0] and held[-1][0] in _IN_BRACKETS and len(held) < _MAX_CITATION:
            held.append((yield))
        text, box = _text(held[:-1]), self._at_start
        if held[-1][0] == "]" and (_CITATION.fullmatch(text) or (box and text in _CHECK_BOXES)):
            held.append((yield))
            after = held[-1][0]
            if text in _CHECK_BOXES:
                if after.isspace():
                    return held[-1:]
            elif self._before.isspace() and (self._has_keys or _BEFORE_A_KEY.fullmatch(self._breaks.last_word.lower())):
                self._has_keys = True
                self._pass_all(held[:-2])
                return held[-1:]
            elif not is_word(self._before) or (
                len(self._breaks.word) > 1 and self._breaks.word.isalpha() and not is_word(after)
            ):
                self._folds = self._folds or self._before.isspace()
                return (yield from self._target()) if after == "(" else held[-1:]
        if is_word(self._before):  # array[0]
            self._brackets += 1
            self._pass(bracket, start)
        elif self._before in _PAUSES:  # a note after a sentence.[x]
            self._pass(" ", start)
        return held

    def _source(self, bracket: str, start: int) -> Mode:
        """A citation like 【4:0†source】."""
        held = [(yield)]
        while held[-1][0] not in ("", "\n", "】") and len(held) < MAX_TAG:
            held.append((yield))
        if held[-1][0] == "】" and re.fullmatch(r"[\d:]+(?:†.*)?", _text(held[:-1])):
            self._folds = self._folds or self._before.isspace()
            return []
        self._pass(bracket, start)
        return held

    def _close_bracket(self, ch: str, offset: int) -> Mode | None:
        if not self._brackets:
            return self._link(offset)
        self._brackets -= 1
        self._pass(ch, offset)
        return None

    def _link(self, bracket: int) -> Mode:
        after = yield
        if after[0] == "(":
            return (yield from self._target())
        if after[0] == "[":  # "[a][b]" is not one word
            self._pass(" ", bracket)
        return [after]

    def _target(self) -> Mode:
        """The rest of the parentheses of a link is skipped; a line break ends them as well."""
        depth = 1
        for _ in range(MAX_TARGET):
            ch, offset = yield
            depth += (ch == "(") - (ch == ")")
            if ch == "\n":
                return [(ch, offset)]
            if not depth:
                break
        return []

    # ---------------------------------------------------------------- HTML

    def _tag(self, ch: str, start: int) -> Mode:
        held = [(ch, start)]
        while True:
            held.append((yield))
            ch, _ = held[-1]
            is_first = len(held) == 2
            if len(held) > _MAX_TAG_NAME + 1 or not (ch.isalnum() or (is_first and ch in ("/", "!"))):
                break
        name = _text(held[1:-1]).removeprefix("/").lower()
        if is_first and ch == "|":
            return (yield from self._special_token(held))
        if name in _TAGS:
            return (yield from self._tag_attributes(held))
        if name in ("http", "https") and ch == ":":
            self._pass(" ", start)
            return held[1:]
        return self._give_up(held)

    def _tag_attributes(self, held: list[Char]) -> Mode:
        while True:
            ch, _ = held[-1]
            if ch == ">" and (tag := _TAG.fullmatch(_text(held[:-1]))):
                name = (tag[1] or tag[2]).lower()
                closes = held[1][0] == "/" and name in ("li", "dd", "dt", "tr")  # the next one begins a line
                return [("" if closes else _TAGS[name], held[0][1])]
            if ch in ("", "\n", "<", ">") or len(held) > MAX_TAG:
                return self._give_up(held)
            held.append((yield))

    def _special_token(self, held: list[Char]) -> Mode:
        """A token like "<|im_start|>", whose marks are no markup."""
        while True:
            held.append((yield))
            ch, _ = held[-1]
            if ch == ">" and len(held) > 3 and held[-2][0] == "|":
                self._pass_all(held)
                return []
            if len(held) > MAX_TAG or not (ch.isalnum() or ch in ("_", "-", "|")):
                return self._give_up(held)

    def _entity(self, ch: str, start: int) -> Mode:
        held = [(ch, start)]
        while True:
            held.append((yield))
            ch, _ = held[-1]
            value = unescape(_text(held)) if ch == ";" else ""
            if len(value) == 1:
                if plain := normal(value, self._before):
                    self._pass(plain, start)
                return []
            if len(held) > _MAX_ENTITY or not (ch.isalnum() or ch == "#"):
                return self._give_up(held)

    # ---------------------------------------------------------------- URLs

    def _url_letter(self, ch: str, offset: int) -> Mode | None:
        if not is_word(self._before) and self._before not in ("@", "/", ".", "_", "-"):
            return self._url(ch, offset)
        self._pass(ch, offset)
        return None

    def _url(self, ch: str, offset: int) -> Mode:
        held = [(ch, offset)]
        while True:
            after = yield
            text = _text([*held, after]).lower()
            if not after[0] or not any(start.startswith(text) for start in _URL_STARTS):
                break
            held.append(after)
        start = max((start for start in _URL_STARTS if text.startswith(start)), key=len, default="")
        if not start or not is_word(text[len(start) : len(start) + 1]):
            self._pass_all(held)
            return [after]
        ch, offset = after
        self._pass_all(held[len(start) :])
        while is_word(ch) or ch in ("-", "."):
            self._pass(ch, offset)
            ch, offset = yield
        return (yield from self._rest_of_url(ch, offset))

    def _rest_of_url(self, ch: str, offset: int) -> Mode:
        """Skips the rest, except for the punctuation at its end, which belongs to the sentence."""
        held: list[Char] = []
        while True:
            if ch in _URL_TRAILING:
                if len(held) < _MAX_TRAILING:
                    held.append((ch, offset))
            elif not ch or ch in _URL_ENDERS or (ch > "\x7f" and not is_word(ch)):
                return [*held, ("" if ch == ">" else ch, offset)]
            else:
                held.clear()
            ch, offset = yield


def _text(chars: list[Char]) -> str:
    return "".join(ch for ch, _ in chars)


def _is_letter(word: str) -> bool:
    """Whether a word is one letter, as the names of a formula are."""
    return len(word) == 1 and word.isalpha()


def _is_spoken(mark: str, count: int, before: str, after: str) -> bool:
    """Whether a run of *, _ or ~ is text, judged by the characters on both sides of it."""
    if mark == "~":
        return count == 1  # "~5 minutes"
    if before.isspace() and after in (" ", NO_BREAK_SPACE):
        return count <= 2 if mark == "*" else count == 1  # "2 * 3"
    if not (is_word(before) and is_word(after)):
        return False
    return mark == "_" or count == 1 or after.isdigit()  # "snake_case", "2*3", "x**2"


# By functions: methods of a cleaner that it keeps would be a cycle for the garbage collector at the end of each text.
_RULES: dict[str, Rule] = {
    "": lambda cleaner, ch, offset: None,
    "\n": Cleaner._newline,
    "\\": Cleaner._escape,
    "^": Cleaner._power,
    "$": Cleaner._dollar,
    "!": Cleaner._bang,
    "|": Cleaner._bar,
    "<": Cleaner._tag,
    "&": Cleaner._entity,
    "[": Cleaner._open_bracket,
    "【": Cleaner._source,
    ARROW: Cleaner._arrow,
    "]": Cleaner._close_bracket,
    ">": Cleaner._quote,
    ":": Cleaner._colon,
    **dict.fromkeys("*_~`", Cleaner._run),
    **dict.fromkeys("#-+=•", Cleaner._line_mark),
    **dict.fromkeys("hHwW", Cleaner._url_letter),
}
