from __future__ import annotations

import pytest
from pydantic import ValidationError

from agent_tts.config.settings import Auth, Settings, is_loopback


def test_loopback_is_recognised() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "localhost.example.com")))


def test_settings_are_frozen_and_refuse_unknown_keys() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # pyrefly: ignore[read-only]
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Settings.model_validate({"prot": 1})


@pytest.mark.parametrize("host", ["192.168..1", "a" * 64, "."])
def test_a_host_that_cannot_be_a_name_is_refused(host: str) -> None:
    """Python's resolver, and HTTP's clients, raise errors for it that are none of the system."""
    with pytest.raises(ValueError, match="is no address, and no name of one"):
        Settings(host=host, auth=Auth(api_keys=("a",)))


@pytest.mark.parametrize("wrong", [{"queue": 10**7}, {"timeouts": {"tcp_user_s": 1e7}}])
def test_what_the_system_or_python_could_not_count_is_refused(wrong: dict[str, object]) -> None:
    """A node did not start with it, and a SIGHUP was obeyed in part."""
    with pytest.raises(ValueError, match="less than or equal"):
        Settings.model_validate(wrong)


def test_numbers_are_finite() -> None:
    """An engine process would get null in place of them."""
    for value in (float("inf"), float("nan")):
        with pytest.raises(ValidationError, match="finite"):
            Settings.model_validate({"limits": {"requests_per_s": value}})


def test_settings_round_trip_through_json() -> None:
    settings = Settings(slots=3, queue=0)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_settings_built_in_python_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TTS_PORT", "1")
    assert Settings().port == 8100


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        ({"keys": {"a b": {"key": "k"}}}, "a name has 1 to 32 of"),
        ({"keys": {"unnamed": {"key": "k"}}}, "is not unnamed"),
        ({"keys": {"a": {"key": ""}}}, "visible ASCII"),
        ({"keys": {"a": {"key": "k"}, "b": {"key": "k"}}}, "two names have the same key"),
        ({"keys": {"a": {"key": "k"}}, "api_keys": ["k"]}, "auth.keys.a is in auth.api_keys"),
        ({"keys": {f"key-{number}": {"key": f"{number}"} for number in range(1_001)}}, "at most 1000"),
    ],
)
def test_a_key_has_one_name_that_is_a_label(auth: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Settings.model_validate({"auth": auth})


def test_a_named_key_opens_the_node_to_other_machines() -> None:
    assert Settings.model_validate({"host": "0.0.0.0", "auth": {"keys": {"a": {"key": "k"}}}}).auth.locked
