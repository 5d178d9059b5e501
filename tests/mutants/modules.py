"""Which modules have mutants, the tests that must notice them, and mutants that no test can notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "agent_tts"


@dataclass(frozen=True)
class Module:
    """The files of a module's own tests, below tests; and its mutants that change nothing, by the reason."""

    tests: tuple[str, ...]
    equivalent: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Why a mutant changes nothing, by its name."""
        return {change: reason for reason, changes in self.equivalent.items() for change in changes}


_SCHEDULER = ("engine/test_scheduler.py", "engine/test_fair_shares.py")

# By path below agent_tts, without the ending.
MODULES = {
    "speech/words/fitting": Module(
        ("speech/words/test_fitting.py", "speech/words/test_silences.py"),
        {
            "differences of them are used": (
                'Fit.__init__: self._speech = array("d", [1.0])',
                'Fit.__init__: self._silence = array("d", [1.0])',
            ),
            "another revision is another revision": (
                "Fit.__init__: self.revision = 1",
                "Fit.add: self.revision += 2",
                "Fit.hear: self.revision += 2",
                "Fit._choose: self.revision += 2",
            ),
            "nothing is before the first mark": (
                "Fit.__init__: start = Guess((Pin(0, 1.0, 0.0),), (PRIOR_MS, PRIOR_MS * pace / speed), (rest_ms, "
                "rest_ms / speed))",
            ),
            "the mark after the last has no length": (
                "Fit.add: if heard_ms > self.span(mark)[1]:",
                "Fit.add: if heard_ms >= self.span(mark)[0]:",
            ),
            "a bound of what is tried, not of what is found": (
                "Fit._extended: if off >= HOPELESS and self._expected(guess, pause.mark) > gap.start_ms - "
                "last.start_ms:",
                "Fit._extended: if off > HOPELESS and self._expected(guess, pause.mark) >= gap.start_ms - "
                "last.start_ms:",
                "Fit._extended: if off > HOPELESS and self._expected(guess, pause.mark) > gap.start_ms + "
                "last.start_ms:",
                "Fit._keep: while len(kept[0].pins) >= OPEN_PINS:",
            ),
            "a length of 0 or 1 ms": (
                "Fit.span: pace = max(1.0, following.end_ms - pin.start_ms) / max(1.0, nominal)",
                "Fit.span: pace = max(0.0, following.end_ms - pin.start_ms) / max(2.0, nominal)",
            ),
        },
    ),
    "speech/words/timeline": Module(
        ("speech/words/test_timeline.py", "speech/words/test_paces.py"),
        {
            "how much is read at once, and how often, and not what": (
                "WordTimeline.hear: if self._pieces % READ_EVERY == 0:",
                "WordTimeline.hear: if not self._tells and self._pieces % READ_EVERY != 0:",
                "WordTimeline._estimate: chars -= len(part) + 2",
                "WordTimeline._estimate: break",
                "LateTimeline._note: if len(self._notes) > MAX_NOTES or self._chars > NOTED_CHARS:",
                "LateTimeline._note: if len(self._notes) >= MAX_NOTES or self._chars >= NOTED_CHARS:",
            ),
            "the mark after the last has no length": (
                "WordTimeline._is_due: begins_ms = self._fit.span(len(self._fit))[1]",
            ),
            "None is no more true": ("Paces.learn: self._paces.popitem(last=None)",),
        },
    ),
    "serve/transports/pace": Module(("serve/transports/test_pace.py",)),
    "serve/access/fair_queue": Module(
        ("serve/access/test_fair_queue.py",),
        {
            "times used are compared with one another": (
                "FairQueue.__init__: self._level_s = 1.0",
                "Share.__init__: self.used_s = 1.0",
                "Share.__init__: self.level_s = 1.0",
                "Flow.__init__: self._used_s = 1.0",
            ),
            "it is set before it is read": ("Flow.__init__: self._began = None", "Flow.__init__: self._began = 1.0"),
            "None is no more true": (
                "FairQueue.__init__: self._is_due = None",
                "FairQueue._pass: share.is_in_line = None",
                "Share.__init__: self.is_in_line = None",
            ),
            "at equality it sets what is there": (
                "FairQueue._catch_up: if share.used_s <= self._level_s - CREDIT_S:",
                "FairQueue._serve: if share.used_s >= self._level_s:",
                "FairQueue._serve: if flow_s >= share.level_s:",
                "Flow._standing: if self._used_s <= used_s:",
            ),
            "times are never exactly equal": (
                "FairQueue._pass: while self._line and (used_s := now - began + tasks_s) <= SLICE_S:",
                "FairQueue._pass: if used_s and used_s + cost_s >= SLICE_S:",
                "Share.rank: return self.used_s if self.spent_s > NEW_S else self.used_s - _head_start_s(self.spent_s)",
                "Flow.has_time: return self._share.queue.clock() - self._began <= SLICE_S",
                "Flow._standing: if self._spent_s > NEW_S:",
            ),
            "the next pass does it": (
                "FairQueue._pass: break",
                "FairQueue._pass: if self._line:",
            ),
            "0 is the default": ("Flow.call: self._share.queue.enter(self._share, self._standing(), self, )",),
        },
    ),
    "serve/access/ledger": Module(
        ("serve/access/test_ledger.py",),
        {
            "owners are any numbers but 0": ("Ledger.__init__: self._numbers = itertools.count(2)",),
            "no limit is named to nobody": ('Ledger._limit: return None, "XXXX"',),
            "one that expires now is refused for that, too, and forgotten with the next": (
                "Ledger._use: for used in list(itertools.takewhile(lambda used: self._used[used] < now, self._used)):",
            ),
        },
    ),
    "serve/access/keys": Module(
        ("serve/access/test_keys.py",),
        {
            "no key has such an id": (
                "Keys._of: return self._known.get(key_id, (UNNAMED, _NO_KEY))",
                'Keys._of: return self._known.get(key_id or "XXXX", (UNNAMED, _NO_KEY))',
            ),
        },
    ),
    "serve/token_bucket": Module(("serve/test_token_bucket.py",)),
    "speech/routing": Module(
        ("speech/test_routing.py",),
        {
            "it is refused with its name and kind": (
                'Routing._named: return _Wanted(NamedVoice(None), name, f"{name!r} is a voice of the released models", '
                '"named")',
            ),
        },
    ),
    "text/entries": Module(
        ("text/test_entries.py", "text/test_lexicon.py"),
        {
            "a shorter way where all entries are whole words": ("Lexicon.__init__: self.whole_words = None",),
            "a shorter way for ASCII": (
                '_plain: return " ".join((text if (text.isascii()) and False else "".join(map(plain_char, '
                "text))).split())",
                '_fold: return " ".join((text.lower() if (text.isascii()) and False else "".join(map(fold_char, '
                "text))).split())",
            ),
        },
    ),
    "text/breaks": Module(("text/test_breaks.py", "text/test_clean.py")),
    "text/latex": Module(
        ("text/test_clean.py",),
        {
            "what is looked up is none of these": (
                'said: power = words.get({"2": "²", "3": "³"}.get(argument.strip(), ), words["^"]) if name == "^" else '
                'words["√"]',
                'said: power = words.get({"2": "²", "3": "³"}.get(argument.strip(), "XXXX"), words["^"]) if name == '
                '"^" else words["√"]',
            ),
            "no power begins with an X, and no command is left with one": (
                "said: return f\"{' ' * (power[0] not in 'XX²³的の의XX')}{power.format(argument.strip())} \"",
                'said: return None if set(text) & set("XX\\\\{}^_XX") else re.sub(r" +(?=[ ,.)]|$)", "", '
                "text).lstrip()",
            ),
        },
    ),
    "text/lexicon": Module(
        ("text/test_lexicon.py",),
        {
            "a shorter way: what cannot begin an entry is not looked up": (
                "LexiconReader.__init__: self._whole_words = None",
                "LexiconReader._may_begin: return fold_char(ch)[:1] in self._first",
                "LexiconReader._may_begin: return not (self._whole_words and _joined(self._before[1], ch))",
                "LexiconReader._may_begin: return fold_char(ch)[:1] in self._first or not (self._whole_words and "
                "_joined(self._before[1], ch))",
            ),
            "no word has such a letter, or kinds are compared with one another alone": (
                'LexiconReader._fits: if after[:1] in APOSTROPHES and word[-1] in "XXnNXX":  # "don\'t"',
                '_kind: return "XXXX" if ch == "・" else "katakana"',
                '_kind: return "" if ch == "・" else "XXkatakanaXX"',
                '_kind: return "hangul" if "\\uac00" <= ch <= "\\ud7a3" else "XXwordXX"',
            ),
            "it counts before an apostrophe alone": (
                'LexiconReader.__init__: self._before = ("XXXX", "")',
                'LexiconReader.flush: self._before = ("XXXX", "")',
            ),
            "None is no more true": ("LexiconReader.append: self._settle(final=None)",),
        },
    ),
    "config/lexicon": Module(
        ("config/test_lexicon.py",),
        {
            "only the memory for what is refused differs": (
                "read_lexicon: return _lexicon_of(file.read(MAX_BYTES + 2), path.name)",
                "read_lexicon: return _lexicon_of(file.read(None), path.name)",
            ),
            "nothing is PLS with an X before it": (
                '_lexicon_of: if data.lstrip(b"XX\\xef\\xbb\\xbf \\t\\r\\nXX").startswith(b"<"):',
            ),
            "the library's errors have a text": (
                '_lexicon_of: why = getattr(error, "problem", None)',
                '_lexicon_of: why = getattr(error, "problem", ) or "unreadable"',
                '_lexicon_of: why = getattr(error, "problem", None) or "XXunreadableXX"',
            ),
        },
    ),
    "protocol/v1": Module(
        ("protocol/test_v1.py",),
        {
            "a text for people": ('check: refuse(error, "XXmessageXX")',),
            "an object for a field that is none is refused with or without its own fields": (
                '_known: _known(inner, nested, unknown, f"{parent}{name}.") if type(inner) is dict else inner',
            ),
        },
    ),
    "ipc/wire": Module(
        ("ipc/test_wire.py",),
        {
            "a name that nobody sees": (
                '_adapter: return TypeAdapter(TypeAliasType("XXBodyXX", hint), config=_STRICT)  '
                "# pyrefly: ignore[bad-argument-type]",
            ),
            "it is the default": ("to_json: body = pydantic_core.to_json(message, )",),
            "a frame without a body is refused for its body, too": (
                "decode: if not 2 <= length <= most:",
                "decode: if not 1 < length <= most:",
            ),
        },
    ),
    "client/resuming": Module(("client/test_resuming.py", "client/test_opus_packets.py")),
    "engine/requests": Module(_SCHEDULER, {"one piece stays one piece": ("take_held: if len(held) >= 1:",)}),
    "engine/estimates": Module(
        ("engine/test_estimates.py",),
        {
            "an estimate comes before it is read": ("Estimates.__init__: self._frees: list[float] = None",),
            "who is refused is told the same shortest time": (
                "Estimates._left_s: left_s = left * FRAME_S + ahead_s - request.options.lead_ms / 1_000",
            ),
        },
    ),
    "engine/admission": Module(_SCHEDULER),
    "engine/scheduler": Module(_SCHEDULER),
}
