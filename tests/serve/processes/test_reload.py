"""SIGHUP: what is used at once, what needs a restart, and that nothing is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from agent_tts.config.settings import Auth, Key, Limits, Settings, Timeouts, Tls
from agent_tts.errors import SettingsError
from agent_tts.serve.processes.reload import Change, Reload, change, with_secrets

pytestmark = pytest.mark.real_time  # settings are read in a thread


def test_limits_keys_and_deadlines_are_used_and_the_rest_is_named() -> None:
    old = Settings(engine="tone")
    new = Settings(
        engine="espeak",
        auth=Auth(api_keys=("k",)),
        limits=Limits(connections=9, max_frames=7),
        timeouts=Timeouts(write_s=1, queue_s=1),
    )
    found = change(old, new)
    assert set(found.used) == {"auth.api_keys", "limits.connections", "timeouts.write_s"}
    assert set(found.kept) == {"engine", "limits.max_frames", "timeouts.queue_s"}
    running = found.apply(old.model_copy(update={"port": 4_711}))
    assert (running.port, running.engine, running.limits.connections, running.timeouts.write_s) == (4_711, "tone", 9, 1)
    assert (running.limits.max_frames, running.timeouts.queue_s) == (old.limits.max_frames, old.timeouts.queue_s)
    assert running.auth.api_keys[0].get_secret_value() == "k"


def test_tls_itself_needs_a_restart_and_another_certificate_does_not() -> None:
    plain, one, other = Settings(), Settings(tls=Tls(cert="a")), Settings(tls=Tls(cert="b", key="k"))
    assert change(plain, one).kept == ("tls.cert",)
    assert change(one, plain).kept == ("tls.cert",)
    assert set(change(one, other).used) == {"tls.cert", "tls.key"}


async def test_what_needs_a_restart_is_named_again_and_an_error_keeps_all() -> None:
    found: list[Settings | SettingsError] = [
        Settings(engine="tone", limits=Limits(connections=3)),
        SettingsError("bad"),
        Settings(engine="tone", limits=Limits(connections=4)),
    ]

    def read() -> Settings:
        now = found.pop(0)
        if isinstance(now, SettingsError):
            raise now
        return now

    changes: list[Change] = []
    reload = Reload(read, Settings())
    for _ in range(3):
        await reload.read(changes.append)
    assert [one.used for one in changes] == [("limits.connections",)] * 2
    assert [one.kept for one in changes] == [("engine",)] * 2


async def test_a_change_that_cannot_be_used_is_found_again() -> None:
    changes: list[Change] = []

    def refuse(one: Change) -> None:
        changes.append(one)
        raise SettingsError("no such certificate")

    reload = Reload(lambda: Settings(limits=Limits(connections=3)), Settings())
    await reload.read(refuse)
    await reload.read(refuse)
    assert [one.used for one in changes] == [("limits.connections",)] * 2


async def test_the_file_of_a_lexicon_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    file.write_text("nginx: engine x")
    changes: list[Change] = []
    reload = Reload(lambda: Settings(lexicon={"ok": "okay"}, lexicon_file=str(file)), Settings())
    await reload.read(changes.append)
    file.write_text("nginx: engine ex")
    await reload.read(changes.append)
    file.write_text("nginx: {no_such_field: 1}")
    await reload.read(changes.append)
    assert [one.used for one in changes] == [("lexicon", "lexicon_file"), ()]
    found = [one.lexicon.mapping() for one in changes if one.lexicon is not None]
    assert found == [{"nginx": "engine x", "ok": "okay"}, {"nginx": "engine ex", "ok": "okay"}]
    assert changes[0].apply(Settings(port=4_711)).lexicon == {"ok": "okay"}


async def test_a_file_of_what_needs_a_restart_holds_up_no_key(tmp_path: Path) -> None:
    """The signer's is broken, which the node has as it was: a key is changed all the same."""
    (signer := tmp_path / "signer.pem").write_text("x")
    old = Settings(c2pa={"certificate": str(signer), "key": str(signer)})
    signer.unlink()
    used: list[Change] = []
    await Reload(lambda: old.model_copy(update={"auth": Auth(api_keys=("new",))}), old).read(used.append)
    assert [change.used for change in used] == [("auth.api_keys",)]


def test_settings_with_secrets_come_back_equal() -> None:
    named = {"shop": Key(key=SecretStr("three"), sessions=8)}
    settings = Settings(auth=Auth(api_keys=("one", "two"), keys=named), fronts=3)
    again = Settings.model_validate(with_secrets(settings))
    assert again == settings
    assert [key.get_secret_value() for key in again.auth.api_keys] == ["one", "two"]
    assert again.auth.keys["shop"].key.get_secret_value() == "three"


def test_secrets_are_never_in_the_line_about_a_change() -> None:
    found = change(Settings(), Settings(auth=Auth(api_keys=("sesame",))))
    assert "sesame" not in str(found)
    assert "auth.api_keys" in str(found)
    found = change(Settings(), Settings(auth=Auth(keys={"shop": Key(key=SecretStr("sesame"))})))
    assert str(found) == "changed: auth.keys"


def test_nothing_changed_is_said() -> None:
    assert str(change(Settings(), Settings())) == "changed: nothing"
