"""The sources of settings, their precedence, and the errors of wrong settings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from agent_tts.config.lexicon import read_lexicon
from agent_tts.config.loading import FIELDS, find_config, load, load_settings, read_yaml, to_yaml
from agent_tts.config.settings import Section, Settings
from agent_tts.errors import SettingsError
from agent_tts.text.entries import Lexicon

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text("port: 1\nslots: 1\nlimits:\n  connections: 1\n  rtc_peers: 1\n")
    return path


def test_flags_beat_environment_beats_file_beats_defaults(config: Path) -> None:
    environ = {"AGENT_TTS_SLOTS": "2", "AGENT_TTS_LIMITS__CONNECTIONS": "2", "AGENT_TTS_LIMITS__RTC_PEERS": "2"}
    settings = load_settings(config, {"limits.rtc_peers": "3", "queue": 3}, environ)
    found = (settings.port, settings.slots, settings.limits.connections, settings.limits.rtc_peers, settings.queue)
    assert found == (1, 2, 2, 3, 3)
    assert settings.lead_ms == Settings().lead_ms


def test_the_source_of_every_value_is_known(config: Path) -> None:
    loaded = load(config, {"queue": "3"}, {"AGENT_TTS_SLOTS": "2"})
    assert loaded.sources == {
        "port": "node.yaml",
        "slots": "environment",
        "limits.connections": "node.yaml",
        "limits.rtc_peers": "node.yaml",
        "queue": "flag",
    }


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("host", "localhost", "localhost"),
        ("log_level", "error", "error"),
        ("web", "off", False),
        ("slots", "null", None),
        ("lead_ms", "250", 250),
        ("timeouts.queue_s", "0.5", 0.5),
        ("auth.allowed_origins", "https://a, https://b", ("https://a", "https://b")),
        ("auth.allowed_origins", '["https://a"]', ("https://a",)),
    ],
)
def test_strings_are_converted_to_the_type_of_the_setting(key: str, text: str, value: object) -> None:
    loaded = [
        load_settings(overrides={key: text}, environ={}),
        load_settings(environ={"AGENT_TTS_" + key.upper().replace(".", "__"): text}),
    ]
    for found in loaded:
        section, _, name = key.rpartition(".")
        assert getattr(getattr(found, section) if section else found, name) == value


def test_numeric_keys_stay_text() -> None:
    settings = load_settings(environ={"AGENT_TTS_AUTH__API_KEYS": "1234,5678"})
    assert [key.get_secret_value() for key in settings.auth.api_keys] == ["1234", "5678"]


@pytest.mark.parametrize(
    ("overrides", "environ", "said"),
    [
        ({"limits.conections": "1"}, {}, "limits.conections on the command line: .* did you mean limits.connections"),
        ({"rtc_peer": "1"}, {}, "did you mean limits.rtc_peers"),
        ({}, {"AGENT_TTS_SLOT": "1"}, "AGENT_TTS_SLOT: .* did you mean AGENT_TTS_SLOTS"),
        ({}, {"AGENT_TTS_LIMITS_CONNECTIONS": "1"}, "did you mean AGENT_TTS_LIMITS__CONNECTIONS"),
        ({"qqqqqq": "1"}, {}, "no such setting; `agent-tts serve --print-config` shows all"),
        ({"limits": "1"}, {}, "limits on the command line: this is a section: .* limits.text_message_chars"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(
    overrides: dict[str, str], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(None, overrides, environ)


def test_what_is_no_utf_8_is_refused() -> None:
    """The engine would look into a folder of another name."""
    with pytest.raises(SettingsError, match="AGENT_TTS_VOICES__FOLDER: not UTF-8"):
        load_settings(environ={"AGENT_TTS_VOICES__FOLDER": os.fsdecode(b"/voices-\xff")})
    assert load_settings(environ={"AGENT_TTS_VOICES__FOLDER": "/voices-ä"}).voices.folder == "/voices-ä"


def test_variables_of_client_commands_are_not_settings() -> None:
    assert load_settings(environ={"AGENT_TTS_URL": "ws://x", "AGENT_TTS_KEY": "k", "PATH": "/bin"}) == Settings()


def test_every_wrong_value_gets_a_line_with_the_allowed_values() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(overrides={"slots": "0", "engine": "tune", "port": "many"}, environ={})
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "greater than or equal to 1, not 0" in str(caught.value)
    assert "'auto', 'qwen3', 'vox', 'hibari', 'espeak' or 'tone', not 'tune'" in str(caught.value)
    assert any(line.startswith("port on the command line: input should be a valid integer") for line in lines)


def test_secrets_are_neither_in_errors_nor_in_the_yaml() -> None:
    overrides = {"auth.api_keys": ["sesame-1", 7_777_777], "ice_servers": [{"urls": ["turn:x"], "credential": 8_888}]}
    with pytest.raises(SettingsError) as caught:
        load_settings(overrides=overrides, environ={})
    assert "auth.api_keys on the command line, item 1" in str(caught.value)
    assert "ice_servers on the command line, item 0.credential" in str(caught.value)
    for secret in ("sesame", "7777777", "8888"):
        assert secret not in str(caught.value)
    assert "sesame" not in to_yaml(load(overrides={"auth.api_keys": "sesame-1"}, environ={}))


def test_named_keys_come_from_a_variable_and_are_never_shown() -> None:
    environ = {"AGENT_TTS_AUTH__KEYS": "{shop: {key: sesame-1, sessions: 8}, desk: {key: sesame-2, operator: true}}"}
    loaded = load(environ=environ)
    assert {name: key.sessions for name, key in loaded.settings.auth.keys.items()} == {"shop": 8, "desk": None}
    assert "sesame" not in to_yaml(loaded) + repr(loaded.settings)
    for wrong in ("shop: {key: sesame-1, sesions: 8}", "shop: sesame-1", "shop: {key: sesame-1, sessions: sesame-2}"):
        with pytest.raises(SettingsError, match="AGENT_TTS_AUTH__KEYS, item shop") as caught:
            load(environ={"AGENT_TTS_AUTH__KEYS": f"{{{wrong}}}"})
        assert "sesame" not in str(caught.value)


def test_a_node_reachable_from_other_machines_needs_a_key() -> None:
    with pytest.raises(SettingsError, match=r"host 0\.0\.0\.0 can be reached from other machines"):
        load_settings(overrides={"host": "0.0.0.0"}, environ={})
    assert load_settings(overrides={"host": "0.0.0.0", "auth.api_keys": "k"}, environ={}).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls: {}\nport: 1\ntls:\n", "bad.yaml: not YAML in line 3: 'tls' stands there twice"),
        ("limits: {window_frames: 1, 'window_frames': 2}", "in line 1: 'window_frames' stands there twice"),
        ("port: [1\n", "bad.yaml: not YAML in line 2"),
        ("- port\n", "bad.yaml: must be keys with values"),
        ("limits: 3\n", "limits in bad.yaml: this is a section"),
        ("timeouts:\n  drain: 3\n", r"timeouts\.drain in bad\.yaml: .* did you mean timeouts\.drain_s\?"),
        ("\x00", "bad.yaml: not YAML"),
        (r'lexicon_file: "a\0b"', "bad.yaml: not YAML in line 1: a NUL character"),  # in no path, name or address
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        load_settings(path, environ={})


def test_several_merges_are_one_mapping() -> None:
    text = "one: &one {port: 1}\nother: &other {host: a}\nboth:\n  <<: *one\n  <<: *other\n"
    assert read_yaml(text)["both"] == {"port": 1, "host": "a"}


BOMB = ["a0: &a0 {x: y}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 12)}]}}" for n in range(1, 6))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("\n".join(BOMB), "has more than 200000 values, with those of aliases", id="merges"),
        pytest.param("\n".join(BOMB).replace("<<", "y"), "has more than 200000 values", id="aliases"),
        pytest.param("port: &a [*a]", "has more than 200000 values", id="an alias of itself"),
        pytest.param("port: " + "[" * 1_000, "it is nested too deep", id="depth"),
        pytest.param("port: " + "9" * 5_000, "line 1: a number is too long", id="a long number"),
        pytest.param("port: " + "1:" * 5_000 + "1", "line 1: a number is too long", id="a number to base 60"),
        pytest.param("port: 2001-99-99", "month must be in 1..12", id="no date"),
        pytest.param("port: 1\n---\nport: 2", "expected a single document|but found another document", id="two"),
        pytest.param("port: !!python/object:os.x {}", "could not determine a constructor", id="a tag"),
    ],
)
def test_a_file_that_makes_more_of_itself_than_it_says_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        load_settings(path, environ={})
    with pytest.raises(SettingsError, match=said.removeprefix("line 1: ")):
        read_lexicon(path)


@pytest.mark.parametrize("text", ["😀", "a😀b", "\U0010ffff", "é", "\u2028x", "\ufeffx", "\ud7ff\ue000"])
def test_json_is_read_as_what_wrote_it(tmp_path: Path, text: str) -> None:
    """Fails where the two escapes of a character beyond U+FFFF are two characters."""
    assert read_yaml(json.dumps({text: [text]})) == {text: [text]}
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"smile": text}))
    assert read_lexicon(path) == Lexicon.of({"smile": text})


@pytest.mark.parametrize("text", [r"\ud83d", r"\ude00", r"\ude00\ud83d", r"a\ud83db", r"\ud83d\ud83d\ude00"])
def test_half_a_character_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f'{{"port": 1,\n\n"host": "{text}"}}')
    with pytest.raises(SettingsError, match=r"bad.yaml: not YAML in line 3: an escape .* is half of a character"):
        load_settings(path, environ={})
    with pytest.raises(SettingsError, match="is half of a character"):
        read_lexicon(path)


def test_an_alias_and_a_merge_are_read(tmp_path: Path) -> None:
    path = tmp_path / "aliases.yaml"
    path.write_text("limits: &all {rtc_peers: 8}\nauth: {keys: {a: &a {key: k, sessions: 2}, b: {<<: *a, key: l}}}")
    found = load_settings(path, environ={})
    assert (found.limits.rtc_peers, found.auth.keys["b"].sessions) == (8, 2)


def test_an_empty_file_and_an_empty_section_mean_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    for text in ("", "limits:\n"):
        path.write_text(text)
        assert load_settings(path, environ={}) == Settings()


def test_printed_settings_load_as_the_same_settings(tmp_path: Path, config: Path) -> None:
    loaded = load(config, {"ice_servers": [{"urls": ["stun:x: #y"]}]}, {})
    path = tmp_path / "printed.yaml"
    path.write_text(to_yaml(loaded))
    assert load_settings(path, environ={}) == loaded.settings
    assert "port: 1  # port to listen on; 0 picks a free one [node.yaml]" in to_yaml(loaded)


def test_every_setting_has_a_description() -> None:
    bare = [field.annotation for field in FIELDS.values() if not field.description]
    assert [kind for kind in bare if not (isinstance(kind, type) and issubclass(kind, Section))] == []


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_and_their_commented_settings_are_valid(path: Path, tmp_path: Path) -> None:
    load_settings(path, environ={})
    lines = path.read_text().splitlines()
    offered = [line.removeprefix("# ") for line in lines if line.startswith(("# auth:", "#   ", "# ice_servers:"))]
    everything = tmp_path / "everything.yaml"
    everything.write_text("\n".join([*lines, *offered]))
    assert set(yaml.safe_load("\n".join(offered))) == {"auth", "ice_servers"}
    assert load_settings(everything, environ={}).auth.api_keys


def test_a_configuration_is_found_by_path_or_by_name(config: Path) -> None:
    assert find_config(str(config)) == config
    assert find_config("cpu") == CONFIGS / "cpu.yaml"
    with pytest.raises(SettingsError, match="no such file; the package has agent, cpu"):
        find_config("gpq")


def test_a_nested_section_has_keys_like_any_other(config: Path) -> None:
    config.write_text("agent:\n  calls: 2\n  llm:\n    model: owl\n")
    environ = {"AGENT_TTS_AGENT__STT__MODEL": "tiny.en", "AGENT_TTS_AGENT__LLM__MODEL": "parrot"}
    agent = load_settings(config, {"agent.stt.device": "cpu"}, environ).agent
    assert (agent.calls, agent.llm.model, agent.stt.model, agent.stt.device) == (2, "parrot", "tiny.en", "cpu")
