"""Takes the pictures of the page in the README and the docs: `python -m tests.measure.pictures`.

A node speaks with `agent-tts[voice]`; Chromium shows it. `screenshot.png` is an interrupted turn in the dark, and
`page.png` a turn that is spoken, light and dark, on a desk and on a telephone.
"""

from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path

from PIL import Image

from agent_tts.bench.node import own_node
from tests.measure.chromium import DevTools, Page, chromium

WEB = Path(__file__).parents[2] / "web"
HEIGHT = 800
SIZES = {"desk": 1120, "telephone": 390}
GAP = 20
SCALE = 2 / 3
TEXT = (
    "The moment your model writes its first word, you hear it. Interrupt it whenever you like: "
    "what was heard, and what was not, is known to the word."
)


async def picture(page: Page) -> Image.Image:
    shot = await page.call("Page.captureScreenshot", format="png")
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


async def speaking(page: Page, url: str, width: int, height: int, scheme: str, text: str | None, heard: int) -> None:
    """Have the page speak until so many words have been heard."""
    await page.resize(width, height)
    await page.prefer(prefers_color_scheme=scheme)
    await page.open(f"{url}/")
    await page.until("agentTts.state === 'ready' && document.querySelector('#voice').value")
    for kind in await page.js("agentTts.notices"):
        await page.click(f"#notices [data-kind={kind}] button:last-of-type")
    if text is not None:
        await page.js("document.querySelector('#text').select()")
        await page.click("#text")
        await page.js("document.querySelector('#text').select()")
        await page.insert(text)
    await page.click("#go")
    await page.until(f"document.querySelectorAll('#said [data-is=heard]').length >= {heard}")


async def interrupted(browser: DevTools, url: str) -> Image.Image:
    async with browser.page() as page:
        await speaking(page, url, 1280, 860, "dark", TEXT, 11)
        await page.press("Escape")
        await page.until("document.querySelector('#flash[data-on]') && document.querySelector('#log li')")
        await asyncio.sleep(0.4)  # the wave falls silent
        return await picture(page)


async def spoken(browser: DevTools, url: str, width: int, scheme: str) -> Image.Image:
    async with browser.page() as page:
        await speaking(page, url, width, HEIGHT, scheme, None, 7)
        return await picture(page)


async def main() -> None:
    async with own_node("serve") as node, chromium() as browser:
        (await interrupted(browser, node.url)).save(WEB / "screenshot.png", optimize=True)
        whole = Image.new("RGB", (sum(SIZES.values()) + GAP, 2 * HEIGHT + GAP), "#808080")
        for row, scheme in enumerate(("light", "dark")):
            for column, width in enumerate(SIZES.values()):
                shot = await spoken(browser, node.url, width, scheme)
                whole.paste(shot, (column * (SIZES["desk"] + GAP), row * (HEIGHT + GAP)))
    small = whole.resize([round(SCALE * side) for side in whole.size], Image.Resampling.LANCZOS)
    small.quantize(256).save(WEB / "docs" / "page.png", optimize=True)
    for path in (WEB / "screenshot.png", WEB / "docs" / "page.png"):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
