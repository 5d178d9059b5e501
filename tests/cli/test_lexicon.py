from __future__ import annotations

from pathlib import Path

import pytest

from agent_tts.voices.library import StoredVoice, VoiceLibrary
from tests.cli.process import invoke

pytestmark = pytest.mark.real_time  # commands run in their own event loops


def test_what_would_be_said_is_printed_with_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    file.write_text("nginx: engine x\nGIF: {ipa: dʒɪf, alias: jif}\n")
    text = 'An **NGINX** <break time="1s"/>and 2 GIFs, GIF, SQL.'
    flags = ("--lexicon", str(file), "--normalize", "--set", 'lexicon={"SQL": "sequel", "nginx": "n"}')
    result = invoke("lexicon", "try", text, *flags)
    assert result.returncode == 0, result.stderr
    said, _, *rows = result.stdout.decode().splitlines()
    assert said == "An engine x and two GIFs, jif, sequel."
    assert [row.split() for row in rows] == [
        ["NGINX", "engine", "x", "--lexicon"],
        ["GIF", "jif", "dʒɪf", "--lexicon"],
        ["SQL", "sequel", "the", "settings"],
    ]


def test_a_text_without_such_words_is_said_as_it_is() -> None:
    result = invoke("lexicon", "try", "Hello.")
    assert (result.returncode, result.stdout) == (0, b"Hello.\n")
    assert b"no word of this text" in result.stderr


def test_a_wrong_file_is_an_error(tmp_path: Path) -> None:
    result = invoke("lexicon", "try", "Hello.", "--lexicon", str(tmp_path / "words.pls"))
    assert (result.returncode, result.stderr) == (2, b"agent-tts: words.pls: No such file or directory\n")


def test_a_voice_has_a_lexicon(tmp_path: Path) -> None:
    VoiceLibrary(tmp_path, 3).add(StoredVoice(name="bob", kind="designed", prompt="A man."), {})
    file = tmp_path / "words.json"
    file.write_text('{"nginx": "engine x"}')
    folder = {"AGENT_TTS_VOICES__FOLDER": str(tmp_path)}
    assert invoke("voices", "lexicon", "bob", **folder).stdout == b"{}\n"
    assert b"a lexicon of 1 word" in invoke("voices", "lexicon", "bob", str(file), **folder).stderr
    assert b"engine x" in invoke("voices", "lexicon", "bob", **folder).stdout
    tried = invoke("lexicon", "try", "nginx", "--voice", "bob", **folder)
    assert tried.stdout.splitlines()[0] == b"engine x"
    assert b"the voice bob" in tried.stdout
    assert invoke("voices", "lexicon", "bob", "--clear", **folder).returncode == 0
    assert invoke("voices", "lexicon", "bob", **folder).stdout == b"{}\n"
