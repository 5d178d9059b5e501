"""The settings model."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agent_tts.config.settings import Settings, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_name_that_starts_with_localhost_is_not_loopback() -> None:
    assert not is_loopback("localhost.example.com")


def test_settings_are_frozen_and_refuse_unknown_keys() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Settings.model_validate({"prot": 1})


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite(value: float) -> None:
    """An engine process would get null in place of them."""
    with pytest.raises(ValidationError, match="finite"):
        Settings.model_validate({"limits": {"requests_per_s": value}})


def test_settings_round_trip_through_json() -> None:
    settings = Settings(slots=3, queue=0)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_settings_built_in_python_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TTS_PORT", "1")
    assert Settings().port == 8100
