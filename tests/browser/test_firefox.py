"""The page in a real Firefox with a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.browser.firefox import Firefox, firefox
from tests.browser.test_page import EAR, LONG, SILENT_MS, hear, pick, ready, speak, stop, use, write
from tests.support import running_node

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fox(loop_thread: None) -> AsyncIterator[Firefox]:
    async with firefox() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["websocket", "webrtc"])
async def test_firefox_speaks_and_falls_silent(fox: Firefox, transport: str) -> None:
    """The chosen voice is heard with its words; Space silences it; the next turn is heard to its end."""
    async with running_node() as node, fox.page() as page:
        await page.open(node.url + "/")
        await page.js(EAR)
        await use(page, transport)
        await write(page, LONG)
        await pick(page, "tone-660")
        heard_ms, _ = await stop(page, node)
        assert heard_ms <= SILENT_MS
        assert await page.js("document.querySelectorAll('#said [data-is=unsaid]').length") > 0
        await write(page, "Good evening.")
        await pick(page, "tone-1320")
        await speak(page)
        await hear(page, 1320)
        await page.until("!agentTts.speaking")
        assert await page.js("[...document.querySelectorAll('#said span')].map((piece) => piece.dataset.is)") == [
            "heard", "heard"
        ]  # fmt: skip
        assert page.errors == []


@pytest.mark.slow
async def test_firefox_without_a_sound_device_says_so(loop_thread: None) -> None:
    """It never lets the page sound: the page says why it is silent. Fails if `unlock` waits in silence."""
    async with firefox(card=False) as deaf, running_node() as node, deaf.page() as page:
        await page.open(node.url + "/")
        await ready(page)
        await page.click("#go")
        await page.until("agentTts.notices.includes('no_sound')")
        assert "no sound device" in await page.js("document.querySelector('#notices').innerText")
        await page.click("#notices [data-kind=no_sound] button")
        assert await page.js("agentTts.notices.includes('no_sound')") is False
