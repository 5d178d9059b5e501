from __future__ import annotations

from agent_tts.config.settings import UNNAMED, Settings
from agent_tts.serve.access.keys import Keys


def test_a_key_is_found_and_has_the_name_and_the_quota_of_its_settings() -> None:
    keys = Keys(Settings(auth={"keys": {"shop": {"key": "sesame", "sessions": 2}, "desk": {"key": "open"}}}).auth)
    shop, desk = keys.ids
    assert (keys.find("sesame"), keys.find("open")) == (shop, desk)
    assert [keys.name(key) for key in (shop, desk)] == ["shop", "desk"]
    assert [keys.quota(key).sessions for key in (shop, desk)] == [2, None]
    assert keys
    assert not Keys(Settings().auth)


def test_what_is_no_key_has_no_name_and_no_limits() -> None:
    keys = Keys(Settings(auth={"keys": {"shop": {"key": "sesame", "sessions": 2}}}).auth)
    assert keys.find("") is keys.find("sesam") is keys.find("\ud800") is None
    assert [(keys.name(key), keys.quota(key).sessions) for key in (None, "0")] == [(UNNAMED, None)] * 2


def test_ids_are_digests_and_the_same_on_all_nodes() -> None:
    """They are in messages between nodes and in the names of what these count."""
    assert list(Keys(Settings(auth={"keys": {"a": {"key": "sesame"}}}).auth).ids) == ["d0c04f4b1951e4ae"]
