from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.errors import InvalidRequest
from agent_tts.voices import names
from agent_tts.voices.names import MAX_PARTS, checked_name, is_name, library_name, parse_mix
from tests.examples import examples

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True).filter(is_name)


@pytest.mark.parametrize("name", ["bob", "0", "a" * 64, "uncle_bob-2"])
def test_a_slug_is_a_name(name: str) -> None:
    assert checked_name(name) == name


BAD = [
    "",
    "a" * 65,
    "-bob",
    "_bob",
    "Bob",
    "bob ",
    "bob\n",
    "bob\0",
    "../bob",
    "a/b",
    "a\\b",
    ".",
    "a.b",
    "bоb",
    "ｂob",
]


@pytest.mark.parametrize("name", [*BAD, "con", "nul", "com1", "lpt9"])
def test_paths_and_reserved_names_are_not_names(name: str) -> None:
    """Mutation: `match` instead of `fullmatch` accepts "bob\
    " and "bob/../x".
    """
    assert not is_name(name)
    with pytest.raises(InvalidRequest, match="1 to 64 of a-z"):
        checked_name(name)


def test_the_prefix_of_clones_is_not_part_of_the_name() -> None:
    assert library_name("clone:bob") == library_name("bob") == "bob"


def test_weights_of_a_mix_sum_to_one() -> None:
    assert parse_mix("bob(0.7)+alice(0.3)") == (("bob", 0.7), ("alice", 0.3))
    assert parse_mix("clone:bob + alice(3)") == (("bob", 0.25), ("alice", 0.75))


@pytest.mark.parametrize("voice", ["", "bob", "clone:bob", "bob(0.5)", "Vivian"])
def test_a_single_voice_is_no_mix(voice: str) -> None:
    assert parse_mix(voice) is None


@pytest.mark.parametrize(
    "voice",
    [
        *("+", "bob+", "+bob", "bob+bob", "bob+clone:bob", "a+B", "a+../b", "a+con"),
        *("a(0)+b", "a(-1)+b", "a(nan)+b", "a(inf)+b", "a(x)+b", "a(1)(2)+b", "a(1+b", "a)+b", "a(1e-320)+b"),
        *("a(1001)+b", "a(0.001)+b(1000)", "+".join("abcdefghi")),
    ],
)
def test_an_invalid_mix_is_refused(voice: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_mix(voice)


@examples(100)
@given(st.dictionaries(NAMES, st.floats(0.01, 10), min_size=2, max_size=MAX_PARTS))
def test_a_mix_is_read_back_from_its_normalised_form(weights: dict[str, float]) -> None:
    """The engine gets the normalised form."""
    mix = parse_mix("+".join(f"{name}({weight!r})" for name, weight in weights.items()))
    assert mix is not None
    assert sum(weight for _, weight in mix) == pytest.approx(1)
    again = parse_mix("+".join(f"{name}({weight!r})" for name, weight in mix))
    assert again is not None
    assert [name for name, _ in again] == list(weights)
    assert [weight for _, weight in again] == pytest.approx([weight for _, weight in mix])


def test_an_unknown_name_is_compared_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library has 1 000 names, of which each comparison may take 0.8 ms."""
    compared: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda name, known, n: compared.extend([name, *known]))
    assert names.did_you_mean("a" * 64, [f"{number:04}".rjust(64, "a") for number in range(1_000)]) == ""
    assert len(compared) <= 1 + names.COMPARED
    assert max(map(len, compared)) <= names.COMPARED_CHARS
