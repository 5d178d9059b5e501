"""Which modules have mutants, the tests that must notice them, and mutants that no test can notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "agent_tts"


@dataclass(frozen=True)
class Module:
    """Paths of a module's own tests, and its equivalent mutants, by name, each with the reason."""

    tests: tuple[str, ...]
    equivalent: dict[str, str] = field(default_factory=dict)


# By path below agent_tts, without the ending; of tests, below tests.
MODULES = {
    "speech/words/fitting": Module(("speech/words/test_fitting.py", "speech/words/test_silences.py")),
    "speech/words/timeline": Module(("speech/words/test_timeline.py",)),
    "serve/transports/pace": Module(("serve/transports/test_pace.py",)),
    "serve/fair_queue": Module(("serve/test_fair_queue.py",)),
    "serve/ledger": Module(
        ("serve/test_ledger.py",),
        {
            "Ledger.__init__: self._numbers = itertools.count(1) -> self._numbers = itertools.count(2)": (
                "owners are any numbers but 0"
            ),
            'Ledger._limit: return None, "" -> return None, "XXXX"': "no limit is named to nobody",
            "Ledger._use: for used in list(itertools.takewhile(lambda used: self._used[used] <= now, self._used)): "
            "-> for used in list(itertools.takewhile(lambda used: self._used[used] < now, self._used)):": (
                "one that expires now is refused for that, too, and forgotten with the next"
            ),
        },
    ),
    "serve/token_bucket": Module(("serve/test_token_bucket.py",)),
    "serve/keys": Module(
        ("serve/test_keys.py",),
        {
            'Keys._of: return self._known.get(key_id or "", (UNNAMED, _NO_KEY)) '
            "-> return self._known.get(key_id, (UNNAMED, _NO_KEY))": "None is no id, as is the empty text",
            'Keys._of: return self._known.get(key_id or "", (UNNAMED, _NO_KEY)) '
            '-> return self._known.get(key_id or "XXXX", (UNNAMED, _NO_KEY))': "nor is this",
        },
    ),
    "speech/routing": Module(("speech/test_routing.py",)),
    "lexicon": Module(("test_lexicon.py",)),
    "text/lexicon": Module(("text/test_lexicon.py",)),
    "config/lexicon": Module(("config/test_lexicon.py",)),
    "protocol/v1": Module(("protocol/test_v1.py",)),
    "ipc/wire": Module(("ipc/test_wire.py",)),
    "client/resuming": Module(("client/test_moving.py",)),
    "engine/scheduler": Module(("engine/test_scheduler.py", "engine/test_fair_shares.py")),
}
