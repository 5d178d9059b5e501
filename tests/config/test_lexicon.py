from __future__ import annotations

from pathlib import Path

import pytest

from agent_tts.config import lexicon
from agent_tts.config.lexicon import node_lexicon, read_lexicon
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.text.entries import Lexicon

PLS = "<lexicon><lexeme><grapheme>nginx</grapheme><alias>engine x</alias></lexeme></lexicon>"


def read(folder: Path, text: str) -> Lexicon:
    (path := folder / "words").write_text(text)
    return read_lexicon(path)


@pytest.mark.parametrize(
    "text", [PLS, f"\ufeff  {PLS}", "nginx: engine x", '{"nginx": "engine x"}', '{"nginx": {"alias": "engine x"}}']
)
def test_a_file_is_pls_or_a_mapping(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Lexicon.of({"nginx": "engine x"})


WRONG = dict.fromkeys(["", "nginx", "- a", "a: 1", "<speak/>", "a: {alias: b, c: d}", "5: a"], "")
WRONG["a: ["] = "neither XML nor YAML: expected the node content"
WRONG["no: know"] = "a word is not a text: YAML has to have 5, no and on in quotes"


@pytest.mark.parametrize(("text", "said"), WRONG.items())
def test_another_file_is_refused_with_its_name_and_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"^words: {said}"):
        read(tmp_path, text)


def test_a_file_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MAX_BYTES", 15)
    read(tmp_path, "nginx: engine x")
    monkeypatch.setattr(lexicon, "MAX_BYTES", 14)
    with pytest.raises(SettingsError, match="words: a lexicon has at most 14 bytes"):
        read(tmp_path, "nginx: engine x")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="words: No such file"):
        read_lexicon(tmp_path / "words")


def test_the_settings_go_before_their_file(tmp_path: Path) -> None:
    path = tmp_path / "words.pls"
    path.write_text(PLS)
    assert node_lexicon(Settings()) is None
    settings = Settings(lexicon={"GIF": "jif"}, lexicon_file=str(path))
    assert node_lexicon(settings) == Lexicon.of({"nginx": "engine x", "GIF": "jif"})
    settings = Settings(lexicon={"nginx": "n"}, lexicon_file=str(path))
    assert node_lexicon(settings) == Lexicon.of({"nginx": "n"})
    settings, kept = Settings(lexicon_file="words"), {"words": b"nginx: kept"}
    assert node_lexicon(settings, kept) == Lexicon.of({"nginx": "kept"})
    with pytest.raises(SettingsError, match="lexicon_file: words cannot be read"):
        node_lexicon(settings)


def test_a_wrong_entry_of_the_settings_is_told() -> None:
    settings = load_settings(None, {}, {"AGENT_TTS_LEXICON": '{"nginx": "engine x"}'})
    assert settings.lexicon == {"nginx": "engine x"}
    with pytest.raises(SettingsError, match=r"lexicon.*an alias has 1 to"):
        load_settings(None, {"lexicon": {"a": ""}}, {})
