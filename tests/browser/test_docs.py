"""The documentation in a real browser: search, contents and what is not there, on a desk and on a telephone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.browser.conftest import SHARED, left_as_it_was
from tests.measure.chromium import DevTools, Page

DOCS = Path(__file__).parents[2] / "web" / "docs"
NAMES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
READABLE = (Path(__file__).parent / "readable.js").read_text()

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time, pytest.mark.usefixtures("shared")]

FOUND = "[...document.querySelectorAll('#found a')].map(({ href }) => href)"
STATUS = "document.querySelector('#found [role=status]').textContent"
FOCUS = "document.activeElement.href ?? document.activeElement.id"


@asynccontextmanager
async def opened(browser: DevTools, name: str = "") -> AsyncIterator[tuple[Page, str]]:
    """A page of the docs, and the address of their folder. It must log nothing and load nothing from other hosts."""
    async with left_as_it_was(SHARED[0]) as node, browser.page() as page:
        docs = node.url + "/docs/"
        await page.open(docs + name)
        yield page, docs
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith(node.url)] == []


async def ask(page: Page, text: str) -> list[str]:
    """Type a question in place of the last one; the addresses of what was found."""
    await page.js("document.querySelector('#words').focus(); document.querySelector('#words').select()")
    await page.call("Input.insertText", text=text)
    await page.until(f"!document.querySelector('#found').hidden && {STATUS} !== ''")
    found: list[str] = await page.js(FOUND)
    return found


@pytest.mark.slow
async def test_a_word_is_found_by_keyboard_alone(browser: DevTools) -> None:
    """`/` begins, arrows go through what was found and back, Enter opens it, Escape ends."""
    async with opened(browser, "engines.md") as (page, docs):
        assert await page.js("document.querySelector('#found').hidden")
        await page.press("/")
        assert await page.js(FOCUS) == "words"
        assert await page.js("document.querySelector('#words').value") == ""
        found = await ask(page, "actimeo")
        assert found == [f"{docs}operating.md#voices-of-several-nodes"]
        assert await page.js(STATUS) == "1 section"
        assert await page.js("[...document.querySelectorAll('#found mark')].map((mark) => mark.textContent)") == [
            "actimeo"
        ]

        found = await ask(page, "SIGTERM drain")
        assert len(found) > 2
        for key, place in {"ArrowDown": found[0], "ArrowUp": "words"}.items():
            await page.press(key)
            assert await page.js(FOCUS) == place
        await page.press("Escape")
        assert await page.js("document.querySelector('#found').hidden && document.querySelector('#words').value") == ""
        assert await page.js(FOCUS) == "words"

        found = await ask(page, "SIGTERM drain")
        await page.press("ArrowDown")
        await page.press("ArrowDown")
        await page.press("Enter")
        await page.until(f"location.href === {found[1]!r} && document.readyState === 'complete'")
        assert await page.js("document.querySelector(location.hash).getBoundingClientRect().top") < 300

        found = await ask(page, "haproxy")
        await page.press("Enter")  # in the field: the first
        await page.until(f"location.href === {found[0]!r}")


async def test_each_page_is_searched_and_each_section_that_is_found_is_there(browser: DevTools) -> None:
    """Words that one page alone has lead to it, in text, in code and in tables; all anchors are the node's own."""
    texts = {name: (DOCS / name).read_text() for name in NAMES}
    async with opened(browser) as (page, docs):
        for name, text in texts.items():
            words: set[str] = set(re.findall(r"[A-Za-z]{4,}", re.sub(r"\]\([^)]*\)", "", text.split("\n", 1)[1])))
            others = "\n".join(other for key, other in texts.items() if key != name).lower()
            own = next(word for word in sorted(words, key=len, reverse=True) if word.lower() not in others)
            found = await ask(page, own)
            assert {address.partition("#")[0] for address in found} == {docs + name}, own
        assert sum(url.endswith(".md") for url in page.requests) == len(NAMES)  # read once, at the first word
        found = await ask(page, "the")
        assert len(found) == 20
        assert re.fullmatch(r"20 of \d+ sections\. More words find fewer\.", await page.js(STATUS))
        every = await page.js(
            "Promise.all([...document.querySelectorAll('#pages a')].map(async ({ href }) => {"
            " const { sections } = await import('../web/search.js');"
            " const text = await (await fetch(href.replace('/docs/', '/web/docs/'))).text();"
            " return sections(text, href).map(({ address }) => address); })).then((all) => all.flat())"
        )
        assert len(every) > 100
        async with httpx.AsyncClient() as http:
            pages = {docs + name: (await http.get(docs + name)).text for name in NAMES}
        for address in every:
            where, _, anchor = address.partition("#")
            assert f'id="{anchor}"' in pages[where], address


@pytest.mark.slow
async def test_nothing_found_is_told(browser: DevTools) -> None:
    """In words, whatever was typed; the field can be emptied, and is then quiet."""
    async with opened(browser) as (page, _):
        for asked in ("quixotic", "xyz (", "[", "\\", "<b>", "drain quixotic"):
            await page.press("/")
            found, told = await ask(page, asked), await page.js(STATUS)
            if asked in ("[", "\\"):  # they stand in code
                assert found
            else:
                assert (found, told) == ([], f"No page has “{asked}”. Try fewer words, or a part of one.")
            await page.js("document.querySelector('#words').select()")
            await page.press("Backspace")
            await page.until("document.querySelector('#found').hidden")
            await page.js("document.querySelector('#words').blur()")


async def test_pages_that_cannot_be_read_are_told_and_read_again(browser: DevTools) -> None:
    async with opened(browser) as (page, _):
        await page.js("window.real = fetch; window.fetch = async () => new Response('', { status: 503 });")
        await page.press("/")
        assert await ask(page, "actimeo") == []
        assert await page.js(STATUS) == "The pages could not be read. Type on to try again."
        await page.js("window.fetch = real; document.querySelector('#words').value = ''")
        await page.call("Input.insertText", text="actimeo")
        await page.until(f"{FOUND}.length === 1")


async def test_contents_lead_to_each_heading_and_stay_in_sight(browser: DevTools) -> None:
    async with opened(browser, "operating.md") as (page, _):
        await page.resize(1_280, 800)
        links = await page.js("[...document.querySelectorAll('#contents a')].map(({ hash }) => hash)")
        assert links == await page.js("[...document.querySelectorAll('main :is(h2, h3)')].map(({ id }) => '#' + id)")
        await page.click("#contents a:last-of-type")
        assert await page.js("location.hash") == links[-1]
        box = "document.querySelector('#contents').getBoundingClientRect()"
        assert 0 <= await page.js(f"{box}.top") < 100
        assert await page.js(f"{box}.left") >= await page.js(
            "document.querySelector('main').getBoundingClientRect().right"
        )
    async with opened(browser, "security.md") as (page, _):
        assert await page.js("document.querySelector('#contents')") is None


@pytest.mark.slow
async def test_search_and_contents_can_be_read(browser: DevTools) -> None:
    """Light and dark; nothing is wider than the window. A telephone shows the text first: contents are folded."""
    performance = [(width, phone, "performance.md") for width, phone in ((1_280, False), (1_000, False), (390, True))]
    async with opened(browser, "operating.md") as (page, docs):
        for width, phone, name in (*performance, (390, True, "nothing")):
            await page.resize(width, 844, phone=phone)
            await page.open(docs + name)
            assert await page.js("document.querySelector('#contents')?.open") == (
                None if name == "nothing" else not phone
            )
            await page.js("document.querySelector('#contents')?.setAttribute('open', '')")
            await page.click("#words")
            for asked, colours in (("voice", "light"), ("quixotic", "dark")):
                await ask(page, asked)
                await page.prefer(prefers_color_scheme=colours)
                assert await page.js(READABLE) == [], (name, asked, colours)
                assert await page.js("document.documentElement.scrollWidth") <= width
        page.errors.clear()  # of the page that is not there


@pytest.mark.slow
async def test_without_scripts_the_pages_have_no_search_but_contents(browser: DevTools) -> None:
    async with opened(browser) as (page, docs):
        await page.call("Emulation.setScriptExecutionDisabled", value=True)
        await page.call("Page.navigate", url=docs + "engines.md")
        async with asyncio.timeout(30):  # a promise of the page would need its scripts
            while not await page.js("location.href.endsWith('engines.md') && document.readyState === 'complete'"):
                await asyncio.sleep(0.02)
        assert not await page.js("document.querySelector('#search').checkVisibility()")
        assert await page.js("document.querySelector('#contents').open")
