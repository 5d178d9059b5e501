"""A real headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect

from agent_tts.errors import Internal, SettingsError

# The shell has no window around its pages, and takes less than two thirds of the CPU.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    # A loopback peer has no other address, and mDNS names would need a resolver. A spare process is seldom used.
    "--disable-features=WebRtcHideLocalIpsWithMdns,SpareRendererForSitePerProcess",
)

START_S = 60.0
CALL_S = 30.0
CLOSE_S = 10.0
POLL_S = 0.02

# Virtual key codes of keys that type no characters.
KEY_CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, " ": 32, "Backspace": 8}
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


Browser = TypeVar("Browser", bound="DevTools")


class PageError(Exception):
    """JavaScript on the page threw an exception."""


def find_chromium(named: str | None = None) -> str:
    """Path of the browser: `path` if given, otherwise the first of NAMES on PATH.

    Raises:
        SettingsError: there is none.
    """
    for name in NAMES if named is None else (named,):
        if path := shutil.which(name):
            return path
    missing = f"{named} is no browser" if named else f"there is none of {', '.join(NAMES)}"
    raise SettingsError(f"this needs Chromium, and {missing}: install it (apt install chromium), or give its path")


class Page:
    """One tab."""

    def __init__(self, devtools: DevTools, session: str, context: str) -> None:
        self._devtools = devtools
        self._session = session
        # The browser context of this tab, with its own storage.
        self._context = context
        # Errors of the page: uncaught exceptions, console errors, violations of the content security policy.
        self.errors: list[str] = []
        # URLs that the page requested.
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one DevTools command."""
        return await self._devtools.call(method, self._session, **params)

    async def open(self, url: str) -> None:
        """Open a URL; returns when its scripts have run."""
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    async def js(self, expression: str) -> Any:
        """Value of an expression; awaits a promise.

        Raises:
            PageError: it threw.
        """
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if details := answer.get("exceptionDetails"):
            raise PageError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    async def until(self, condition: str, timeout_s: float = 60.0) -> None:
        """Wait in the page until an expression is truthy.

        Raises:
            TimeoutError: it stayed false.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    with contextlib.suppress(PageError):  # the page is being replaced or does not exist yet
                        if await self.js(_WAIT % condition):
                            return
        except TimeoutError:
            raise TimeoutError(f"not within {timeout_s} s: {condition}") from None

    async def click(self, selector: str) -> None:
        """A real mouse click in the middle of an element."""
        place = await self.js(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'nearest', behavior: 'instant'});"
            "const box = element.getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    async def press(self, key: str, *modifiers: str) -> None:
        """A real key press."""
        bits = sum(MODIFIERS[name] for name in modifiers)
        code = KEY_CODES.get(key) or ord(key.upper())
        text = {"Enter": "\r", "Tab": ""}.get(key, key if len(key) == 1 else "") if not bits & ~8 else ""
        named = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code, "modifiers": bits}
        down = "keyDown" if text else "rawKeyDown"
        await self.call("Input.dispatchKeyEvent", type=down, text=text, **named)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, text: str) -> None:
        """Type text into the focused field, one character at a time."""
        for character in text:
            await self.insert(character)

    async def insert(self, text: str) -> None:
        """Put text into the focused field, at once."""
        await self.call("Input.insertText", text=text)

    async def allow(self, permission: str, setting: str) -> None:
        """Set a permission of this tab to "granted", "denied" or "prompt"."""
        named = {"name": permission}
        await self._devtools.call(
            "Browser.setPermission", permission=named, setting=setting, browserContextId=self._context
        )

    async def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Size of the window, CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        await self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    async def throttle(self, kbit_s: float) -> None:
        """Limit what the page receives, over WebSockets too, but not over WebRTC; kbit/s."""
        limits = {"offline": False, "latency": 0, "downloadThroughput": kbit_s * 125, "uploadThroughput": -1}
        await self.call("Network.emulateNetworkConditions", **limits)

    async def prefer(self, **features: str) -> None:
        """Emulate media features, such as `prefers_color_scheme="dark"`."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=named)

    def receive(self, method: str, params: dict[str, Any]) -> None:
        """Handle an event of this tab."""
        match method:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(part.get("value", part)) for part in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.errors.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}".rstrip())
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.webSocketCreated":
                self.requests.append(params["url"])


# Polls by messages to itself, because timers of background tabs are slow, for at most 100 ms.
_WAIT = """new Promise((resolve, reject) => {
  const until = performance.now() + 100;
  const { port1, port2 } = new MessageChannel();
  const settle = (value) => { port1.close(); resolve(value); };
  port1.onmessage = () => {
    try {
      const value = Boolean(%s);
      if (value || performance.now() > until) settle(value);
      else setTimeout(() => port2.postMessage(0), 5);
    } catch (error) { port1.close(); reject(error); }
  };
  port2.postMessage(0);
})"""


class DevTools:
    """The connection to a browser: commands, their answers, and events for their tabs."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        # Commands without an answer yet, by id.
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        # Tabs by DevTools session.
        self._pages: dict[str, Page] = {}
        # Contexts in which nothing is allowed and no tab is open, and the origins of what is stored in each.
        self._contexts: dict[str, set[str]] = {}

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command. Cancelling it drops the answer."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(CALL_S):
                await self._connection.send(json.dumps(message))
                return await answer
        finally:
            del self._waiting[number]

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """A tab with its own storage; closed at the end of the block.

        A tab that is closed leaves its context for the next one, which removes what it stored: to make a context takes
        as long as to load a page.
        """
        made = None if self._contexts else await self.call("Target.createBrowserContext")
        context, origins = (str(made["browserContextId"]), set[str]()) if made else self._contexts.popitem()
        is_left = False
        try:
            target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
            attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
            page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"], context)
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            for origin in origins:
                await page.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
            yield page
            origins = {"/".join(url.split("/")[:3]) for url in page.requests if url.startswith("http")}
            await page.call("Page.navigate", url="about:blank")  # what it does as it is left comes before the next
            await self.call("Target.closeTarget", targetId=target)
            await self.call("Browser.resetPermissions", browserContextId=context)
            is_left = True
        finally:
            if is_left:
                self._contexts[context] = origins
            else:
                await self.call("Target.disposeBrowserContext", browserContextId=context)

    async def listen(self) -> None:
        """Dispatch the browser's messages until the connection ends."""
        async for data in self._connection:
            message = json.loads(data)
            if waiting := self._waiting.get(message.get("id", 0)):
                if waiting.done():
                    continue
                if "error" in message:
                    waiting.set_exception(PageError(str(message)))
                else:
                    waiting.set_result(message["result"])
            elif page := self._pages.get(message.get("sessionId", "")):
                page.receive(message["method"], message["params"])


@asynccontextmanager
async def chromium(*flags: str, path: str | None = None) -> AsyncIterator[DevTools]:
    """A browser with an empty profile and these additional flags; removes its processes and its profile at the end.

    Args:
        path: of the browser; None takes the first that is found.

    Raises:
        SettingsError: there is no browser.
        Internal: it does not start.
    """
    program = find_chromium(path)
    async with fresh_profile() as profile:
        every = (*FLAGS, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank")
        async with browser_process(program, every, lambda: len(_port_file(profile)) == 2):
            port, address = _port_file(profile)
            async with connected(DevTools, f"ws://127.0.0.1:{port}{address}") as devtools:
                yield devtools


@asynccontextmanager
async def fresh_profile() -> AsyncIterator[Path]:
    """An empty folder for a browser's profile; removed at the end."""
    profile = Path(tempfile.mkdtemp(prefix="agent_tts-browser-"))
    try:
        yield profile
    finally:
        async with asyncio.timeout(CLOSE_S):
            while not _removed(profile):
                await asyncio.sleep(POLL_S)


def _removed(folder: Path) -> bool:
    """Helper processes of the browser may write shortly after its end."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@asynccontextmanager
async def browser_process(program: str, flags: Sequence[str], listens: Callable[[], bool]) -> AsyncIterator[None]:
    """A browser that listens; killed at the end. Raises `Internal` if it ends before."""
    process = await asyncio.create_subprocess_exec(
        program,
        *flags,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_S):
            while process.returncode is None and not listens():
                await asyncio.sleep(POLL_S)
        if process.returncode is not None:
            raise Internal(f"{program} ended with code {process.returncode} while starting")
        yield
    finally:
        # Killed with its process group: it has no state to save.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        async with asyncio.timeout(CLOSE_S):
            await process.wait()


def _port_file(profile: Path) -> list[str]:
    """Port and path of the DevTools socket; waits until the browser has written both."""
    try:
        return (profile / "DevToolsActivePort").read_text().splitlines()
    except FileNotFoundError:
        return []


@asynccontextmanager
async def connected(kind: type[Browser], url: str) -> AsyncIterator[Browser]:
    """The connection to a browser that listens at this address."""
    async with connect(url, max_size=None, proxy=None) as connection:
        devtools = kind(connection)
        listener = asyncio.create_task(devtools.listen(), name="devtools listener")
        try:
            yield devtools
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
