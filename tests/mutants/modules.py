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


# By path below agent_tts, without the ending.
MODULES = {
    "speech/words/fitting": Module(
        ("speech/words/test_fitting.py", "speech/words/test_silences.py"),
        {
            "differences of them are used": (
                'Fit.__init__: self._speech = array("d", [0.0]) -> self._speech = array("d", [1.0])',
                'Fit.__init__: self._silence = array("d", [0.0]) -> self._silence = array("d", [1.0])',
            ),
            "another revision is another revision": (
                "Fit.__init__: self.revision = 0 -> self.revision = 1",
                "Fit.add: self.revision += 1 -> self.revision += 2",
                "Fit.hear: self.revision += 1 -> self.revision += 2",
                "Fit._choose: self.revision += 1 -> self.revision += 2",
            ),
            "nothing is before the first mark": (
                "Fit.__init__: start = Guess((Pin(0, 0.0, 0.0),), (PRIOR_MS, PRIOR_MS * pace / speed), "
                "(rest_ms, rest_ms / speed)) -> start = Guess((Pin(0, 1.0, 0.0),), "
                "(PRIOR_MS, PRIOR_MS * pace / speed), (rest_ms, rest_ms / speed))",
            ),
            "the mark after the last has no length": (
                "Fit.add: if heard_ms > self.span(mark)[0]: -> if heard_ms > self.span(mark)[1]:",
                "Fit.add: if heard_ms > self.span(mark)[0]: -> if heard_ms >= self.span(mark)[0]:",
            ),
            "a bound of what is tried, not of what is found": (
                "Fit._extended: if off > HOPELESS and self._expected(guess, pause.mark) > gap.start_ms - last.start_ms:"
                " -> if off >= HOPELESS and self._expected(guess, pause.mark) > gap.start_ms - last.start_ms:",
                "Fit._extended: if off > HOPELESS and self._expected(guess, pause.mark) > gap.start_ms - last.start_ms:"
                " -> if off > HOPELESS and self._expected(guess, pause.mark) >= gap.start_ms - last.start_ms:",
                "Fit._extended: if off > HOPELESS and self._expected(guess, pause.mark) > gap.start_ms - last.start_ms:"
                " -> if off > HOPELESS and self._expected(guess, pause.mark) > gap.start_ms + last.start_ms:",
                "Fit._keep: while len(kept[0].pins) > OPEN_PINS: -> while len(kept[0].pins) >= OPEN_PINS:",
            ),
            "a length of 0 or 1 ms": (
                "Fit.span: pace = max(0.0, following.end_ms - pin.start_ms) / max(1.0, nominal) "
                "-> pace = max(1.0, following.end_ms - pin.start_ms) / max(1.0, nominal)",
                "Fit.span: pace = max(0.0, following.end_ms - pin.start_ms) / max(1.0, nominal) "
                "-> pace = max(0.0, following.end_ms - pin.start_ms) / max(2.0, nominal)",
            ),
        },
    ),
    "speech/words/timeline": Module(("speech/words/test_timeline.py",)),
    "serve/transports/pace": Module(("serve/transports/test_pace.py",)),
    "serve/access/fair_queue": Module(("serve/access/test_fair_queue.py",)),
    "serve/access/ledger": Module(
        ("serve/access/test_ledger.py",),
        {
            "owners are any numbers but 0": (
                "Ledger.__init__: self._numbers = itertools.count(1) -> self._numbers = itertools.count(2)",
            ),
            "no limit is named to nobody": ('Ledger._limit: return None, "" -> return None, "XXXX"',),
            "one that expires now is refused for that, too, and forgotten with the next": (
                "Ledger._use: for used in list(itertools.takewhile(lambda used: self._used[used] <= now, self._used)): "
                "-> for used in list(itertools.takewhile(lambda used: self._used[used] < now, self._used)):",
            ),
        },
    ),
    "serve/access/keys": Module(
        ("serve/access/test_keys.py",),
        {
            "no key has such an id": (
                'Keys._of: return self._known.get(key_id or "", (UNNAMED, _NO_KEY)) '
                "-> return self._known.get(key_id, (UNNAMED, _NO_KEY))",
                'Keys._of: return self._known.get(key_id or "", (UNNAMED, _NO_KEY)) '
                '-> return self._known.get(key_id or "XXXX", (UNNAMED, _NO_KEY))',
            ),
        },
    ),
    "serve/token_bucket": Module(("serve/test_token_bucket.py",)),
    "speech/routing": Module(("speech/test_routing.py",)),
    "text/entries": Module(("text/test_entries.py",)),
    "text/lexicon": Module(("text/test_lexicon.py",)),
    "config/lexicon": Module(("config/test_lexicon.py",)),
    "protocol/v1": Module(("protocol/test_v1.py",)),
    "ipc/wire": Module(("ipc/test_wire.py",)),
    "client/resuming": Module(("client/test_moving.py",)),
    "engine/scheduler": Module(("engine/test_scheduler.py", "engine/test_fair_shares.py")),
}
