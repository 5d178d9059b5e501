"""A real headless Firefox, driven over WebDriver BiDi by the calls of `tests.measure.chromium`."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_tts.errors import SettingsError
from tests.measure.chromium import DevTools, Page, PageError, browser_process, connected, fresh_profile

NAMES = ("firefox-esr", "firefox")
PREFERENCES = {
    "media.autoplay.default": 0,
    "media.autoplay.blocking_policy": 0,
    # A loopback peer has no other address, and mDNS names would need a resolver.
    "media.peerconnection.ice.loopback": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
}
# A clock in place of a sound card: without one, Firefox never starts an AudioContext.
CARD = {"media.cubeb.force_mock_context": True}
# Code points for keys that type no characters, of WebDriver.
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004"}


class FirefoxPage(Page):
    """One tab. What only Chromium can do (sizes, permissions, networks) is not there."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command for this tab."""
        return await self._devtools.call(method, context=self._context, **params)

    async def open(self, url: str) -> None:
        await self.call("browsingContext.navigate", url=url, wait="complete")

    async def js(self, expression: str) -> Any:
        where = {"context": self._context}
        answer = await self._devtools.call("script.evaluate", expression=expression, target=where, awaitPromise=True)
        if answer["type"] == "exception":
            raise PageError(answer["exceptionDetails"]["text"])
        return _value(answer["result"])

    async def insert(self, text: str) -> None:
        await self.js(f"document.execCommand('insertText', false, {json.dumps(text)})")

    async def press(self, key: str, *modifiers: str) -> None:
        assert not modifiers
        await self._act("key", *({"type": kind, "value": KEYS.get(key, key)} for kind in ("keyDown", "keyUp")))

    async def _click(self, x: float, y: float) -> None:
        down, up = ({"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp"))
        await self._act("pointer", {"type": "pointerMove", "x": round(x), "y": round(y)}, down, up)

    async def _act(self, kind: str, *actions: dict[str, Any]) -> None:
        await self.call("input.performActions", actions=[{"type": kind, "id": kind, "actions": list(actions)}])

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "log.entryAdded" and params["level"] == "error":
            self.errors.append(params["text"])


class Firefox(DevTools):
    """The connection to a browser."""

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        user = (await self.call("browser.createUserContext"))["userContext"]
        try:
            tab = (await self.call("browsingContext.create", type="tab", userContext=user))["context"]
            page = self._pages[tab] = FirefoxPage(self, tab, tab)
            await self.call("session.subscribe", events=["log.entryAdded"], contexts=[tab])
            yield page
        finally:
            await self.call("browser.removeUserContext", userContext=user)

    def _page_of(self, message: dict[str, Any]) -> Page | None:
        return self._pages.get(message.get("params", {}).get("source", {}).get("context", ""))


@asynccontextmanager
async def firefox(*, card: bool = True) -> AsyncIterator[Firefox]:
    """A browser with an empty profile, and a sound card or none; removes its processes and its profile at the end.

    Raises:
        SettingsError: there is no browser.
        Internal: it does not start.
    """
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        raise SettingsError("this needs Firefox: install it (apt install firefox-esr)")
    async with fresh_profile() as profile:
        preferences = PREFERENCES | (CARD if card else {"media.cubeb.backend": "none"})
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items())
        (profile / "user.js").write_text("".join(lines))
        flags = ("--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port=0")
        async with browser_process(program, flags, lambda: _address(profile) is not None):
            async with connected(Firefox, f"{_address(profile)}/session") as browser:
                await browser.call("session.new", capabilities={})
                yield browser


def _value(told: dict[str, Any]) -> Any:
    """What WebDriver tells of a value; None for what JSON has not."""
    match told["type"]:
        case "array":
            return [_value(one) for one in told["value"]]
        case "object":
            return {name: _value(one) for name, one in told["value"]}
        case "string" | "number" | "boolean":
            return told["value"]
    return None


def _address(profile: Path) -> str | None:
    """Address of the browser's socket; None until the browser has written it."""
    try:
        where = json.loads((profile / "WebDriverBiDiServer.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return f"ws://{where['ws_host']}:{where['ws_port']}"
