"""What SIGHUP does: settings are read again, and some are used from then on without a restart."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from loguru import logger
from pydantic import SecretStr

from agent_tts.config.files import FileContents, contents_of
from agent_tts.config.lexicon import node_lexicon
from agent_tts.config.settings import Section, Settings
from agent_tts.errors import SettingsError
from agent_tts.serve.transports.tls import warn_of_certificate
from agent_tts.system.in_child import without_collections
from agent_tts.system.threads import in_daemon
from agent_tts.text.entries import Lexicon

# Reads the settings again from where they came; raises `SettingsError`.
Reader = Callable[[], Settings]

# Keys, and sections whose keys are used at once, except those that the engines got at their start.
LIVE = ("auth", "tls", "limits", "timeouts", "lexicon", "lexicon_file")
OF_ENGINES = {
    *("limits.text_idle_s", "limits.window_frames", "limits.max_frames", "limits.context_s"),
    *("timeouts.queue_s", "timeouts.engine_start_s", "timeouts.engine_heartbeat_s"),
}
READ_S = 30.0  # for all files to be read; a network's file system may hang, or the writer of a pipe


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between the settings of a running node and those that were read again."""

    settings: Settings  # as read, without what needs a restart
    used: tuple[str, ...]  # dotted keys that differ, of which the new value is used now
    kept: tuple[str, ...]  # and those that need a restart
    contents: FileContents = field(default_factory=dict)  # of the files of `settings`, as they are now
    lexicon: Lexicon | None = None  # that of `settings`, with its file

    def apply(self, running: Settings) -> Settings:
        """The settings of a running node, which may have more than was read, with this change."""
        return running.model_copy(update={name: getattr(self.settings, name) for name in LIVE})

    def __str__(self) -> str:
        used = ", ".join(self.used) or "nothing"
        return f"changed: {used}" + (f"; needs a restart: {', '.join(self.kept)}" if self.kept else "")


def change(old: Settings, new: Settings) -> Change:
    """How a node with the settings `old` takes up `new`; both as read."""
    before = dict(_values(old))
    differ = [key for key, value in _values(new) if value != before[key]]
    # Whether there is TLS at all is part of the address that clients have.
    encrypted = old.tls.cert is not None and new.tls.cert is not None
    used = [
        key
        for key in differ
        if key.partition(".")[0] in LIVE and key not in OF_ENGINES and (encrypted or not key.startswith("tls."))
    ]
    sections = {name: _live(getattr(old, name), getattr(new, name), name, used) for name in LIVE}
    return Change(old.model_copy(update=sections), tuple(used), tuple(key for key in differ if key not in used))


class Reload:
    """Reads the settings of a running node again."""

    def __init__(self, read: Reader, settings: Settings) -> None:
        self._read = read
        self._settings = settings  # as read, and used

    async def serve(self, use: Callable[[Change], None]) -> None:
        """Read them at each SIGHUP, one time after the other, until it is cancelled."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, asked.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # also one that has come before
        try:
            while True:
                await asked.wait()
                asked.clear()
                await self.read(use)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a node that ends is not killed by one

    async def read(self, use: Callable[[Change], None]) -> None:
        """Have a change used, and log it. A `SettingsError` of the reader or of `use` leaves all as it was.

        The files are read in a thread: a lexicon of 10 000 words takes a second. One that hangs is left behind.
        """
        try:
            async with asyncio.timeout(READ_S):
                found = await asyncio.wrap_future(in_daemon(self._find, "reload"))
            use(found)
        except (SettingsError, TimeoutError) as error:
            logger.error("SIGHUP: the settings stay as they are: {}", str(error) or f"not read within {READ_S:g} s")
            return
        except Exception:  # noqa: BLE001 - a fault here must not end a node that speaks
            logger.exception("SIGHUP: the settings stay as they are")
            return
        self._settings = found.settings
        logger.info("SIGHUP: the settings are read again; {}", found)
        if (cert := found.settings.tls.cert) is not None:
            warn_of_certificate(cert, found.contents[cert], datetime.now(UTC))

    def _find(self) -> Change:
        # A document has a million objects while it is read: a collection of them would stop all for 30 ms.
        with without_collections():
            found = change(self._settings, self._read())
            contents = contents_of(found.settings, LIVE)
            return replace(found, contents=contents, lexicon=node_lexicon(found.settings, contents))


def _live(old: Any, new: Any, name: str, used: list[str]) -> Any:
    if not isinstance(old, Section):
        return new
    return old.model_copy(update={key: getattr(new, key) for key in type(old).model_fields if f"{name}.{key}" in used})


def _values(section: Section, prefix: str = "") -> Iterator[tuple[str, object]]:
    """All values, by dotted keys."""
    for name, value in section:
        if isinstance(value, Section):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def with_secrets(settings: Settings) -> dict[str, Any]:
    """The settings as a document of JSON, with secrets, for another process of the same node."""
    document: dict[str, Any] = json.loads(json.dumps(settings.model_dump(), default=_plain))
    return document


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
