"""Pronunciation dictionaries by the vendors' own SDKs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cartesia import AsyncCartesia, NotFoundError
from elevenlabs import (
    BodyAddAPronunciationDictionaryV1PronunciationDictionariesAddFromRulesPostRulesItem_Alias as AliasRule,
)
from elevenlabs import (
    BodyAddAPronunciationDictionaryV1PronunciationDictionariesAddFromRulesPostRulesItem_Phoneme as PhonemeRule,
)
from elevenlabs import PronunciationDictionaryVersionLocator
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from filelock import FileLock
from livekit.agents import tts
from livekit.plugins import cartesia as livekit_cartesia
from livekit.plugins import elevenlabs as livekit_elevenlabs
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.tts_service import TTSService

from agent_tts.errors import InvalidRequest, UnknownDictionary
from agent_tts.serve import dictionaries
from agent_tts.serve.dictionaries import MAX_FILE_BYTES, MAX_RULES, MAX_VERSIONS, Dictionaries, Rule
from agent_tts.system.records import Records, RecordsBusy
from agent_tts.system.threads import computing
from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, VOICE
from tests.serve.dialects.stock import RAW, Stock, elevenlabs_of, stock_clients
from tests.support import RunningNode, running_node

NGINX = Rule("nginx", "engine x")

PLS = """<?xml version="1.0" encoding="UTF-8"?>
<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en-US">
  <lexeme><grapheme>tomato</grapheme><phoneme>təˈmɑːtoʊ</phoneme></lexeme>
  <lexeme><grapheme>UN</grapheme><alias>United Nations</alias></lexeme>
</lexicon>
"""


@pytest.fixture
def stored(tmp_path: Path) -> Dictionaries:
    return Dictionaries(tmp_path / "dictionaries", 3)


# ---------------------------------------------------------------- the store


def test_another_process_sees_a_change(stored: Dictionaries, tmp_path: Path) -> None:
    other = Dictionaries(tmp_path / "dictionaries", 3)
    made = stored.add("mine", [NGINX], "of servers")
    assert other.records.by_id(made.id) == made
    changed = other.change(made.id, name="yours", rules=[Rule("GIF", "dʒ|ɪ|f", "ipa")])
    assert stored.records.by_id(made.id) == changed
    assert [entry.ipa for entry in stored.lexicon([(made.id, None)]).entries] == ["dʒɪf"]
    stored.records.delete(made.id)
    with pytest.raises(UnknownDictionary):
        other.records.by_id(made.id)
    assert other.all() == []


def test_rules_that_are_added_at_once_all_count(stored: Dictionaries, tmp_path: Path) -> None:
    """Two processes; each has a lock of its own for its threads."""
    made = stored.add("mine", [NGINX])
    both = stored, Dictionaries(tmp_path / "dictionaries", 3)
    words = [f"word {number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        for number, word in enumerate(words):
            pool.submit(both[number % 2].change, made.id, rules=[Rule(word, "it")], instead_of={word})
    assert {rule.written for rule in stored.records.by_id(made.id).latest.rules} == {"nginx", *words}


def test_a_deletion_waits_for_a_change_of_another_process(stored: Dictionaries, tmp_path: Path) -> None:
    """Otherwise the change stores again what was deleted."""
    made = stored.add("mine", [NGINX])
    with ThreadPoolExecutor(1) as threads:
        with FileLock(tmp_path / "dictionaries" / ".lock"):
            deletion = threads.submit(stored.records.delete, made.id)
            with pytest.raises(TimeoutError):
                deletion.result(0.1)
        deletion.result(5)
    with pytest.raises(UnknownDictionary):
        stored.records.by_id(made.id)


def test_compiled_rules_are_kept_up_to_a_number_of_characters(
    stored: Dictionaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest go, however few there are; what alone is longer stays until the next comes."""
    short, other = (stored.add("short", [Rule(word, "b" * 9)]) for word in "ac")
    long = stored.add("long", [Rule("a", "b" * 40)])
    monkeypatch.setattr(dictionaries, "_CACHED", 30)
    first, second = (stored.lexicon([(one.id, None)]) for one in (short, other))
    assert stored.lexicon([(short.id, None)]) is first
    longest = stored.lexicon([(long.id, None)])
    assert stored.lexicon([(long.id, None)]) is longest
    assert stored.lexicon([(other.id, None)]) is not second


def test_a_file_is_made_a_dictionary_once_however_often_it_is_read_after_a_change(
    stored: Dictionaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is what this process has written itself; a file that is another one is."""
    other = Dictionaries(tmp_path / "dictionaries", 3)
    made = stored.add("mine", [NGINX])
    read: list[bytes] = []
    shape: Any = other.records._shape

    class Counted:
        dump_json = shape.dump_json

        def validate_json(self, data: bytes) -> Any:
            read.append(data)
            return shape.validate_json(data)

    monkeypatch.setattr(other.records, "_shape", Counted())
    assert [other.records.by_id(made.id) for _ in range(3)] == [made] * 3
    assert len(read) == 1
    changed = other.change(made.id, name="ours")
    assert other.records.by_id(made.id) == changed
    assert len(read) == 1
    changed = stored.change(made.id, name="theirs")
    assert [other.records.by_id(made.id) for _ in range(2)] == [changed] * 2
    assert len(read) == 2


@pytest.mark.parametrize("work", ["check", "change", "read", "compile"])
def test_what_computes_waits_for_whoever_computes(stored: Dictionaries, work: str) -> None:
    """Mutations: each `with computing`. Threads that compute at once take the interpreter from the loop by turns."""
    known = stored.add("known", [NGINX])
    others = Dictionaries(stored.records.folder, 3)  # which has read nothing
    works: dict[str, Callable[[], object]] = {
        "check": lambda: dictionaries.Version.of([NGINX]),
        "change": lambda: stored.records.change(known.id, lambda found: found),
        "read": lambda: others.records.by_id(known.id),
        "compile": lambda: stored.lexicon([(known.id, None)]),
    }
    with ThreadPoolExecutor(1) as thread:
        with computing:
            done = thread.submit(works[work])
            with pytest.raises(TimeoutError):
                done.result(0.1)
        done.result(10)


def test_a_lock_that_another_process_keeps_is_an_error(tmp_path: Path) -> None:
    records = Records(tmp_path, "dictionary", str.isalnum, Path.read_text)
    with FileLock(tmp_path / ".lock"), pytest.raises(RecordsBusy), records.changing("stored", 0.05):
        pass


@pytest.mark.parametrize(
    "damage",
    [
        {"created_at": "2026-01-01T00:00:00"},
        {"versions": []},
        {"id": "f" * 20},
        {"id": 5},
        {"description": "x" * MAX_FILE_BYTES},
        {"versions": [{"id": "a" * 20, "rules": [{"written": "", "said": "x"}]}]},
        {"versions": [{"id": "a" * 20, "rules": [{"written": "x", "said": "x", "alphabet": "klingon"}]}]},
    ],
    ids=lambda damage: str(damage)[:40],
)
def test_a_damaged_dictionary_costs_the_others_nothing(
    damage: dict[str, Any], stored: Dictionaries, tmp_path: Path
) -> None:
    """Fails where what orders or tells all of them trusts a file: a time without a zone refused every list."""
    whole, broken = stored.add("whole", [NGINX]), stored.add("broken", [NGINX])
    path = tmp_path / "dictionaries" / f"{broken.id}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert [each for each in stored.all() if each.id == whole.id] == [whole]
    with pytest.raises(UnknownDictionary, match="damaged"):
        stored.lexicon([(broken.id, None)])


def test_a_version_is_kept_until_there_are_too_many(stored: Dictionaries) -> None:
    made = stored.add("mine", [NGINX])
    for count in range(MAX_VERSIONS):
        (entry,) = stored.lexicon([(made.id, made.latest.id)]).entries
        assert entry.alias == "engine x"
        stored.change(made.id, rules=[Rule("nginx", f"engine {count}")])
    with pytest.raises(UnknownDictionary, match="no such version"):
        stored.lexicon([(made.id, made.latest.id)])


def test_of_long_versions_two_are_kept(stored: Dictionaries, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are one file, which is read whole after each change."""
    monkeypatch.setattr(dictionaries, "KEPT_CHARS", 30)
    made = stored.add("mine", [NGINX])
    for length in (1, 40, 41):
        changed = stored.change(made.id, rules=[Rule("nginx", "x" * length)])
    assert [version.chars for version in changed.versions] == [45, 46]
    assert len(stored.change(made.id, rules=[Rule("nginx", "x")]).versions) == 2


def test_the_first_dictionary_counts(stored: Dictionaries) -> None:
    first = stored.add("first", [NGINX])
    second = stored.add("second", [Rule("nginx", "N G"), Rule("SQL", "sequel")])
    lexicon = stored.lexicon([(first.id, None), (second.id, None)])
    assert {entry.written: entry.alias for entry in lexicon.entries} == {"nginx": "engine x", "SQL": "sequel"}


def test_a_key_in_small_letters_may_begin_a_sentence(stored: Dictionaries) -> None:
    made = stored.add("mine", [Rule("bayou", "bye you", capitals="sentence"), Rule("US", "you ess", capitals="any")])
    entries = {entry.written: entry.match_case for entry in stored.lexicon([(made.id, None)]).entries}
    assert entries == {"bayou": True, "Bayou": True, "US": False}


@pytest.mark.parametrize("name", ["", "..", "../etc/passwd", "0" * 19, "0" * 20 + "/", "A" * 20])
def test_an_id_is_no_path(stored: Dictionaries, name: str) -> None:
    with pytest.raises(UnknownDictionary):
        stored.records.by_id(name)
    with pytest.raises(UnknownDictionary):
        stored.records.delete(name)


def test_limits(stored: Dictionaries) -> None:
    with pytest.raises(InvalidRequest, match=r"rules.0: .*alphabet"):
        stored.add("mine", [Rule("GIF", "dZIf", "kirshenbaum")])
    with pytest.raises(InvalidRequest, match="at most 1000 rules"):
        stored.add("mine", [Rule(f"word{number}", "a") for number in range(MAX_RULES + 1)])
    for _ in range(3):
        stored.add("mine", [])
    with pytest.raises(InvalidRequest, match="no more than 3"):
        stored.add("mine", [])


# ---------------------------------------------------------------- the SDKs


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RunningNode]:
    async with running_node(dictionaries={"folder": str(tmp_path / "dictionaries")}) as running:
        yield running


@pytest.fixture
def elevenlabs(node: RunningNode) -> Iterator[ElevenLabs]:
    with elevenlabs_of(node) as client:
        yield client


@pytest.mark.node
async def test_cartesia(node: RunningNode) -> None:
    items: list[Any] = [
        {"text": "bayou", "alias": "<<b|ɑ|j|u>>", "case_sensitive": True},
        {"text": "tchoupitoulas", "alias": "chop-uh-TOO-liss"},
    ]
    async with AsyncCartesia(api_key="none", base_url=node.url) as client:
        dictionaries = client.pronunciation_dicts
        made = await dictionaries.create(name="Louisiana", items=items)
        kept = [item.model_dump(exclude_unset=True) for item in made.items]
        assert kept == [items[0], items[1] | {"case_sensitive": False}]
        assert await dictionaries.retrieve(made.id) == made
        others = [await dictionaries.create(name=str(number)) for number in range(4)]
        assert [each.id async for each in dictionaries.list(limit=2)] == [each.id for each in [*others[::-1], made]]
        changed = await dictionaries.update(made.id, name="New Orleans", items=items[:1])
        assert (changed.name, len(changed.items)) == ("New Orleans", 1)
        fields = {"alias": "a" * 100, "case_sensitive": True, "id": 1, "of": None}  # unknown ones are ignored
        many: list[Any] = [{"text": f"word{number}"} | fields for number in range(MAX_RULES)]
        assert len((await dictionaries.update(made.id, items=many)).items) == MAX_RULES
        await dictionaries.delete(made.id)
        with pytest.raises(NotFoundError, match="no such pronunciation dictionary"):
            await dictionaries.retrieve(made.id)


@pytest.mark.node
async def test_elevenlabs(elevenlabs: ElevenLabs) -> None:
    await asyncio.to_thread(_use_elevenlabs, elevenlabs)


def _use_elevenlabs(client: ElevenLabs) -> None:
    dictionaries = client.pronunciation_dictionaries
    phoneme = PhonemeRule(string_to_replace="tomato", phoneme="T AH0 M AA1 T OW0", alphabet="cmu-arpabet")
    alias = AliasRule(string_to_replace="UN", alias="United Nations", case_sensitive=False, word_boundaries=False)
    made = dictionaries.create_from_rules(name="food", rules=[phoneme, alias], description="and politics")
    assert (made.name, made.version_rules_num, made.description) == ("food", 2, "and politics")
    told = dictionaries.get(made.id)
    assert [rule.string_to_replace for rule in told.rules] == ["tomato", "UN"]
    assert (told.rules[1].case_sensitive, told.rules[1].word_boundaries) == (False, False)

    added = dictionaries.rules.add(made.id, rules=[AliasRule(string_to_replace="UN", alias="you en")])
    assert added.version_id != made.version_id
    assert [getattr(rule, "alias", None) for rule in dictionaries.get(made.id).rules] == [None, "you en"]
    assert dictionaries.rules.remove(made.id, rule_strings=["tomato"]).version_rules_num == 1
    assert dictionaries.rules.set(made.id, rules=[phoneme]).version_rules_num == 1
    file = b"".join(dictionaries.download(made.id, made.version_id)).decode()
    assert "<grapheme>tomato</grapheme><phoneme>təˈmɑtoʊ</phoneme>" in file
    assert "<alias>United Nations</alias>" in file

    fields = {"alias": "a" * 100, "case_sensitive": True, "word_boundaries": True}
    many = [AliasRule(string_to_replace=f"word{number}", **fields) for number in range(MAX_RULES)]
    assert dictionaries.rules.set(made.id, rules=many).version_rules_num == MAX_RULES

    from_file = dictionaries.create_from_file(name="file", file=("food.pls", PLS))
    assert [rule.type for rule in dictionaries.get(from_file.id).rules] == ["phoneme", "alias"]
    page = dictionaries.list(page_size=1)
    assert ([each.id for each in page.pronunciation_dictionaries], page.has_more) == ([from_file.id], True)
    page = dictionaries.list(page_size=1, cursor=page.next_cursor)
    assert ([each.id for each in page.pronunciation_dictionaries], page.has_more) == ([made.id], False)
    assert dictionaries.update(made.id, name="meals", archived=True).name == "meals"
    assert [each.id for each in dictionaries.list().pronunciation_dictionaries] == [from_file.id]

    unknown = PhonemeRule(string_to_replace="a", phoneme="a", alphabet="x")
    with pytest.raises(ApiError) as refused:
        dictionaries.get("0" * 20)
    assert (refused.value.status_code, refused.value.body["detail"]["status"]) == (404, "unknown_dictionary")
    with pytest.raises(ApiError, match="alphabet"):
        dictionaries.create_from_rules(name="x", rules=[unknown])
    with pytest.raises(ApiError, match="line 1"):
        dictionaries.create_from_file(name="x", file=("food.pls", "<lexicon>"))


# ---------------------------------------------------------------- speech

# Said as `FIRST`, told as it is written.
WRITTEN = FIRST.replace("nice", "NYC")
RULES = [Rule("NYC", "nice")]


@pytest.fixture
async def stock(tmp_path: Path) -> AsyncIterator[Stock]:
    """All audio comes at once."""
    async with stock_clients(lead_ms=60_000, dictionaries={"folder": str(tmp_path / "dictionaries")}) as made:
        yield made


async def piped(service: TTSService, text: str) -> tuple[bytes, list[str]]:
    async with running([service]) as pipeline:
        await pipeline.turn(*pipecat_run.tokens(text))
        return pipeline.pcm(), pipeline.words


async def streamed(speaker: tts.TTS[Any], text: str) -> tuple[bytes, list[str]]:
    async with speaker:
        events = await livekit_run.say(speaker, text)
        return livekit_run.pcm(events), livekit_run.words(events)


@pytest.mark.node
async def test_stock_clients_speak_with_it(stock: Stock) -> None:
    stored = stock.node.node.dictionaries
    made, other = stored.add("mine", RULES), stored.add("other", [Rule("NYC", "windy")])
    locators = [livekit_elevenlabs.PronunciationDictionaryLocator(each.id, each.latest.id) for each in (made, other)]

    async def speak(text: str) -> list[tuple[bytes, list[str]]]:
        pipecat = stock.pipecat(CartesiaTTSService, {"pronunciation_dict_id": made.id})
        of_cartesia = stock.livekit(livekit_cartesia.TTS, pronunciation_dict_id=made.id)
        of_elevenlabs = stock.livekit(
            livekit_elevenlabs.TTS, encoding="pcm_24000", pronunciation_dictionary_locators=locators
        )
        return list(
            await asyncio.gather(piped(pipecat, text), streamed(of_cartesia, text), streamed(of_elevenlabs, text))
        )

    plain, spoken = await asyncio.gather(speak(FIRST), speak(WRITTEN))
    assert [pcm for pcm, _ in spoken] == [pcm for pcm, _ in plain]
    assert [words for _, words in spoken] == [WRITTEN.split()] * 3
    async with stock.cartesia() as client:
        request: dict[str, Any] = {"model_id": "sonic-3", "voice": VOICE, "output_format": RAW}
        whole = await (await client.tts.generate(transcript=FIRST, **request)).read()
        answer = await client.tts.generate(transcript=WRITTEN, pronunciation_dict_id=made.id, **request)
        assert await answer.read() == whole
        with pytest.raises(NotFoundError, match="no such pronunciation dictionary"):
            await client.tts.generate(transcript=WRITTEN, pronunciation_dict_id="pdict_1", **request)


@pytest.mark.node
async def test_the_sdk_of_elevenlabs_speaks_with_it(stock: Stock) -> None:
    made = stock.node.node.dictionaries.add("mine", RULES)
    with elevenlabs_of(stock.node) as client:

        def speak(text: str, *ids: str) -> bytes:
            locators = [PronunciationDictionaryVersionLocator(pronunciation_dictionary_id=each) for each in ids]
            options: dict[str, Any] = {"pronunciation_dictionary_locators": locators} if ids else {}
            return b"".join(client.text_to_speech.convert(VOICE, text=text, output_format="pcm_24000", **options))

        assert await asyncio.to_thread(speak, WRITTEN, made.id) == await asyncio.to_thread(speak, FIRST)
        with pytest.raises(ApiError, match="unknown_dictionary"):
            await asyncio.to_thread(speak, WRITTEN, "0" * 20)


@pytest.mark.node
async def test_an_unknown_dictionary_is_an_error_of_the_context(stock: Stock) -> None:
    async with stock.session.ws_connect(f"{stock.url}/tts/websocket") as socket:
        await socket.send_json({"context_id": "a", "transcript": "Hi.", "pronunciation_dict_id": "x"})
        told = await socket.receive_json()
        assert (told["type"], told["error_code"], told["context_id"]) == ("error", "unknown_dictionary", "a")
    async with stock.session.ws_connect(f"{stock.url}/v1/text-to-speech/{VOICE}/multi-stream-input") as socket:
        locators = [{"pronunciation_dictionary_id": "x", "version_id": "y"}]
        await socket.send_json({"context_id": "a", "text": " ", "pronunciation_dictionary_locators": locators})
        await socket.send_json({"context_id": "a", "text": "Hi. "})
        told = await socket.receive_json()
        assert (told["error"], told["contextId"]) == ("unknown_dictionary", "a")


@pytest.mark.node
async def test_cartesias_volume(stock: Stock) -> None:
    loud = []
    for volume in (1.0, 0.5):
        pcm, words = await streamed(stock.livekit(livekit_cartesia.TTS, volume=volume), WRITTEN)
        assert words == WRITTEN.split()
        loud.append(np.abs(np.frombuffer(pcm, "<i2").astype(int)).max())
    assert loud[1] == pytest.approx(loud[0] / 2, rel=0.05)
