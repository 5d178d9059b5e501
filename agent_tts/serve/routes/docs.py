"""`/docs`: the pages of web/docs as HTML. A page keeps the name of its file, so that its links work in both places."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

INDEX = "index.md"
LONG = 4  # headings below its title with which a page has contents
DEEPEST = 8  # slashes in an unknown page's name beyond which it is told in one line: each makes all links longer

_PAGE = Path(__file__).with_suffix(".html").read_text("utf-8")

_MISSING = """# There is no such page

See [the start of the documentation]({top}index.md), all pages in the list, or search.
"""


class Docs:
    """The pages and pictures of a folder. Each page is rendered at its first request, and kept."""

    def __init__(self, folder: Path, headers: dict[str, str]) -> None:
        """`headers` are of every response."""
        # What may be asked for: no path of a request is a path of the disk.
        files = (file for kind in ("md", "png") for file in folder.rglob(f"[!.]*.{kind}"))
        self._files = {file.relative_to(folder).as_posix(): file for file in files}
        self._headers = headers
        self._page = functools.cache(self._render)

    async def serve(self, request: Request) -> Response:
        """Answer `/docs`, `/docs/`, and `/docs/NAME` with or without its `.md`."""
        asked = request.path_params.get("name")
        if asked is None:  # links are relative to the folder
            return RedirectResponse("docs/")
        bare = asked.removesuffix("/")
        name = bare if bare in self._files else f"{bare}.md" if bare else INDEX
        if name not in self._files:
            if (depth := asked.count("/")) > DEEPEST:
                raise HTTPException(404, "there is no such page; /docs/ lists them")
            page, _ = await asyncio.to_thread(self._page, "../" * depth)
            return Response(page, 404, self._headers, "text/html; charset=utf-8")
        if bare != asked:
            return RedirectResponse(f"../{name.rpartition('/')[2]}")
        if not name.endswith(".md"):
            return FileResponse(self._files[name], headers=self._headers)
        page, tag = await asyncio.to_thread(self._page, name)
        headers = self._headers | {"ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    def _render(self, name: str) -> tuple[bytes, str]:
        """A page, and its entity tag. What is not there has a page, too: its name is the way up to the index."""
        markdown, file = _markdown(), self._files.get(name)
        tokens = markdown.parse(_MISSING.format(top=name) if file is None else file.read_text(encoding="utf-8"))
        title = next(heading.content for opening, heading in pairwise(tokens) if opening.tag == "h1")
        top = "../" * name.count("/")
        page = _PAGE.format(
            title=escape(title),
            top=top,
            nav="".join(self._links(name, top)),
            body=markdown.renderer.render(list(_anchored(tokens)), markdown.options, {}),
        ).encode()
        return page, f'"{hashlib.sha256(page).hexdigest()[:32]}"'

    def _links(self, name: str, top: str) -> Iterator[str]:
        """The headings and the links of the index, for `name`."""
        heading = False
        for token in _markdown().parse(self._files[INDEX].read_text(encoding="utf-8")):
            if token.tag == "h2":
                heading = token.nesting > 0
            elif heading:
                yield f"<h2>{escape(token.content)}</h2>"
            children = token.children or []
            for link, text in pairwise(children):
                if link.type == "link_open" and (target := str(link.attrs["href"])) in self._files:
                    here = ' aria-current="page"' if target == name else ""
                    yield f'<a href="{top}{escape(target)}"{here}>{escape(text.content)}</a>'


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _anchored(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens of a page with its contents, an anchor at each heading, and each table in a box that scrolls."""
    from markdown_it.token import Token

    for token, following in zip_longest(tokens, tokens[1:]):
        if token.type == "heading_open":
            token.attrSet("id", slug(following.content))
        elif token.type == "table_open":
            yield Token("html_block", "", 0, content='<div class="wide" tabindex="0">')
        yield token
        if token.type == "table_close":
            yield Token("html_block", "", 0, content="</div>")
        elif token.type == "heading_close" and token.tag == "h1":
            yield Token("html_block", "", 0, content=_contents(tokens))


def _contents(tokens: Sequence[Token]) -> str:
    """Links to the headings of a long page; nothing for another one."""
    headings = [
        f'<a class="{opening.tag}" href="#{slug(text.content)}">{escape(_plain(text), quote=False)}</a>'
        for opening, text in pairwise(tokens)
        if opening.type == "heading_open" and opening.tag != "h1"
    ]
    if len(headings) < LONG:
        return ""
    return (
        '<details id="contents" open><summary>On this page</summary>'
        f'<nav aria-label="On this page">{"".join(headings)}</nav></details>'
    )


def _plain(text: Token) -> str:
    return "".join(child.content for child in text.children or [])
