"""The pages of web/docs: served, linked, and correct where a program can check."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
import yaml
from openai import OpenAI

from agent_tts.config.loading import FIELDS, load_settings
from agent_tts.engine.espeak.voices import LIKE
from agent_tts.engine.qwen3.voices import ALIASES, SPEAKERS
from agent_tts.errors import BY_CODE
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.options import SessionConfig
from agent_tts.serve.routes.docs import Docs
from agent_tts.voices import OPENAI_VOICES
from tests.deploy.test_monitoring import EXPOSED
from tests.integrations.pipecat.pipeline import running
from tests.support import running_node, typed
from tests.test_structure import LAYERS
from tests.wire import wire

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "web" / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
GPU = yaml.safe_load((ROOT / "configs" / "gpu.yaml").read_text())
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.S)


def symbols(path: Path) -> set[str]:
    """Names that a Python file defines, as `name` and `Class.name`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                found |= {name} | {f"{name}.{inner.name}" for inner in body if isinstance(inner, FUNCTIONS)}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    return found


def test_files_and_symbols_named_in_the_architecture_exist() -> None:
    text = (DOCS / "architecture.md").read_text()
    for path, symbol in re.findall(r"`((?:agent_tts|tests)/[\w./]+?)(?::([\w.]+))?`", text):
        assert (ROOT / path).exists(), path
        assert not symbol or symbol in symbols(ROOT / path), f"{path}:{symbol}"
    everywhere = {symbol for path in (ROOT / "agent_tts").rglob("*.py") for symbol in symbols(path)}
    assert [name for name in re.findall(r"`([A-Z]\w+\.\w+)`", text) if name not in everywhere] == []
    for folder, layers in re.findall(r"^\| `agent_tts/(\w+)/` \|.*\|(.*)\|$", text, re.M):
        assert set(re.findall(r"\w+", layers)) == LAYERS[folder], folder
    for line in text.partition("## Glossary")[2].partition("\n## ")[0].splitlines():  # the glossary names classes
        defined = {symbol for path in re.findall(r"`([\w/]+\.py)`", line) for symbol in symbols(ROOT / path)}
        assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", line.split("|")[1] if "|" in line else "")) <= defined, line


@pytest.mark.real_time  # files are read in threads, which virtual time does not cover
async def test_the_node_serves_the_pages() -> None:
    """Each page has all links; each link and anchor of each page leads to a page that is served and has it."""
    async with running_node() as running, httpx.AsyncClient(base_url=running.url) as client:
        assert str((await client.get("/docs", follow_redirects=True)).url).endswith("/docs/")
        pages = {name: (await client.get(f"/docs/{name}")) for name in NAMES}
        for name, page in pages.items():
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert page.text.count('aria-current="page"') == (name != "index.md")
            again = await client.get(f"/docs/{name}", headers={"If-None-Match": page.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            for link in set(re.findall(r'(?:href|src)="([^"]+)"', page.text)):
                target = page.url.join(link)
                if target.host == page.url.host and target.path not in {"/", "/docs/"}:
                    found = pages.get(target.path.removeprefix("/docs/")) or await client.get(
                        target.copy_with(fragment="")
                    )
                    assert found.status_code == 200, (name, link)
                    assert not target.fragment or f'id="{target.fragment}"' in found.text, (name, link)
        for wrong in WRONG:
            answer = await client.get(f"/docs/{wrong}")
            assert answer.status_code == 404, wrong
            links = set(re.findall(r'(?:href|src)="([^"#]+)"', answer.text))
            assert len(links) > 30, wrong  # all pages, in their usual frame
            for link in links:
                known = pages.get(answer.url.join(link).path.removeprefix("/docs/"))
                assert known or (await client.get(answer.url.join(link))).status_code == 200, (wrong, link)
        deep = await client.get("/docs/" + "a/" * 2_000)
        assert deep.status_code == 404
        assert len(deep.content) < 200


WRONG = ("nothing.md", "nothing", "nothing/", "clients", "clients/nothing.md", "a/b/c/d", "engines.md.md", "page")
# Files that are there, by ways that are none.
OUTSIDE = ("../index.html", "..%2findex.html", "%2e%2e/style.css", "/etc/passwd", "%2e%2e/%2e%2e/README", "../docs.css")


@pytest.mark.real_time  # files are read in threads, which virtual time does not cover
async def test_a_page_is_found_without_its_ending_and_with_a_slash() -> None:
    """At every depth, and nothing else of the disk; the way back leads to this host."""
    async with running_node() as running, httpx.AsyncClient(base_url=running.url) as client:
        for name in NAMES:
            bare = name.removesuffix(".md")
            page = (await client.get(f"/docs/{name}")).content
            assert (await client.get(f"/docs/{bare}")).content == page
            for other in (f"{bare}/", f"{name}/"):
                answer = await client.get(f"/docs/{other}", follow_redirects=True)
                assert (answer.content, answer.url.path) == (page, f"/docs/{name}")
                assert [step.headers["location"][:3] for step in answer.history] == ["../"]
        assert (await client.get("/docs/page.png/", follow_redirects=True)).headers["content-type"] == "image/png"
        for path in (*OUTSIDE, "/evil.example/engines/", "//evil.example/", "..//evil.example/engines/"):
            answer = await client.get(f"/docs/{path}", follow_redirects=True)
            assert answer.status_code == 404, path
            assert answer.url.host == "127.0.0.1"


@pytest.mark.parametrize("name", NAMES)
def test_a_long_page_has_contents(name: str) -> None:
    """Each heading below the title once, in their order, without the marks of Markdown."""
    page = Docs(DOCS, {})._page(name)[0].decode()
    headings = re.findall(r'<h([23]) id="([^"]+)">(.*?)</h\1>', page)
    contents = re.findall(r'<a class="h([23])" href="#([^"]+)">(.*?)</a>', page)
    expected = [(level, anchor, re.sub("<[^>]+>", "", text)) for level, anchor, text in headings]
    assert contents == (expected if len(headings) >= 4 else [])
    assert len({anchor for _, anchor, _ in headings}) == len(headings)


def test_what_a_minute_costs_is_computed_from_what_was_measured() -> None:
    text = (DOCS / "performance.md").read_text()
    before, _, section = text.partition("## What a minute costs")
    assert "`price / (60 * callers * share)`" in section
    rows = re.findall(r"^\| (.+?) \| ([\d ]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", section, re.M)
    assert len(rows) == 3
    for _, callers, price, share, cost in rows:
        assert float(cost) == float(f"{float(price) / (60 * int(callers.replace(' ', '')) * float(share)):.2g}")
    (gpu,) = re.findall(r"^\| 1 000 \(2 546\) \|.*\| (\d+) \|$", text, re.M)  # callers with gaps
    (cpu,) = re.findall(r"^\| 16 \|.*\| (\d+) \| [^|]+ \|$", before, re.M)
    assert (gpu, cpu) == ("0", "0")
    assert {row[1] for row in rows} == {"1 000", "16"}


def test_the_file_of_two_models_is_loaded(tmp_path: Path) -> None:
    (example,) = blocks("engines.md", "yaml")
    (tmp_path / "voices.yaml").write_text(example)
    settings = load_settings(tmp_path / "voices.yaml", {})
    named, base = settings.qwen3.models
    assert (named.load, base.load) == ("start", "first_use")
    pinned = {(model["source"], model["revision"]) for model in GPU["qwen3"]["models"]}
    assert {(model.source, model.revision) for model in (named, base)} <= pinned


@pytest.mark.real_time  # files are read in threads, which virtual time does not cover
async def test_files_of_the_page_are_packed_for_those_who_unpack_them() -> None:
    """And are the same; a client that has one gets 304, a part of one is not packed."""
    async with running_node() as running, httpx.AsyncClient(base_url=running.url) as client:
        for path, file in {"/": "index.html", "/web/app.js": "app.js", "/web/style.css": "style.css"}.items():
            plain, packed = [await client.get(path, headers={"Accept-Encoding": kind}) for kind in ("identity", "gzip")]
            assert plain.content == packed.content == (DOCS.parent / file).read_bytes()
            assert (plain.headers["vary"], "content-encoding" in plain.headers) == ("Accept-Encoding", False)
            assert int(packed.headers["content-length"]) < len(plain.content) / 2
            for reply in (plain, packed):
                known = {"If-None-Match": reply.headers["etag"], "Accept-Encoding": "gzip"}
                again = await client.get(path, headers=known)
                assert again.status_code == 304
                for answer in (reply, again):
                    assert answer.headers["x-content-type-options"] == "nosniff"
                    assert ("content-security-policy" in answer.headers) == (path == "/")
            head = await client.head(path, headers={"Accept-Encoding": "gzip"})
            assert (head.headers["content-encoding"], head.content) == ("gzip", b"")
            part = await client.get(path, headers={"Range": "bytes=0-9"})
            assert (part.status_code, part.content) == (206, plain.content[:10])


def test_text_of_a_page_is_no_markup(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# <b>A</b>\n\n<script>x</script> & [b](javascript:x)\n")
    page, _ = Docs(tmp_path, {})._page("index.md")
    assert b"<title>&lt;b&gt;A&lt;/b&gt;" in page
    assert b"<p>&lt;script&gt;x&lt;/script&gt; &amp; [b](javascript:x)</p>" in page


def test_files_and_targets_named_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"`((?:agent_tts|tests|configs|web)/[\w./-]*)`", text) + re.findall(
        r"\]\(([^)#:]+)\)", text
    ):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"make ([a-z]+)`", text)) - {"quick"} <= targets


def test_the_index_has_every_part_that_can_be_installed() -> None:
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "index.md").read_text(), re.M)
    assert {part for row in rows for part in re.findall("`(.+?)`", row)} == parts.keys() - {"dev", "fuzz", "mutants"}


def test_the_index_links_every_page() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (DOCS / "index.md").read_text())
    assert sorted([*links, "index.md"]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_links_to_other_pages_exist(name: str) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", (DOCS / name).read_text()):
        assert (DOCS / name).parent.joinpath(link).exists(), link


@pytest.mark.parametrize("name", NAMES)
def test_settings_files_and_metrics_named_in_the_docs_exist(name: str) -> None:
    text = (DOCS / name).read_text()
    sections = {key.split(".")[0] for key in FIELDS if "." in key}
    for key in re.findall(r"`([a-z0-9_]+\.[a-z0-9_.]+)", text):
        if key.split(".")[0] in sections - {"agent"}:
            assert key.rstrip(".") in FIELDS, key
    for path in re.findall(r"`((?:configs|pipelines|web)/[\w./-]+?)`", text):
        assert (ROOT / path).exists(), path
    for metric in re.findall(r"`(agent_tts_\w+)`", text):
        assert any(sample.startswith(metric) for sample in EXPOSED), metric


async def test_the_protocol_page_has_every_code_message_field_and_route() -> None:
    text = (DOCS / "protocol.md").read_text()
    assert [kind for kind in protocol.TYPES if f"`{kind}`" not in text] == []
    async with running_node() as running, httpx.AsyncClient(base_url=running.url) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    named = set(re.findall(r"`(?:GET |POST |DELETE )?(/(?:v1/[a-z/_{}]+|health|ready|metrics))`", text))
    assert named - {"/v1/tts/stream"} <= set(paths)
    assert {code for code in BY_CODE if f"`{code}`" not in text} <= {"connection_lost"}
    assert [field for field in SessionConfig.model_fields if f"`{field}`" not in text] == []


async def test_the_example_of_the_protocol_page_is_spoken() -> None:
    (example,) = blocks("protocol.md", "json")
    async with running_node() as running, wire(running.ws_url) as peer:
        for line in example.splitlines():
            await peer.socket.send(line)
        assert (await peer.until("context.done", "t1"))["reason"] == "end"
        assert peer.pcm("t1")


@pytest.mark.parametrize("name", ["open-webui", "sillytavern"])
async def test_the_request_of_a_client_program_is_answered_with_mp3(name: str) -> None:
    """The request has a key, which a node without keys ignores."""
    (body,) = blocks(f"clients/{name}.md", "json")
    async with running_node(engine="espeak") as running, httpx.AsyncClient(base_url=running.url) as client:
        headers = {"Authorization": "Bearer unused", "Content-Type": "application/json"}
        answer = await client.post("/v1/audio/speech", content=json.dumps(json.loads(body)), headers=headers)
        voices = (await client.get("/v1/audio/voices")).json()["voices"]
    assert answer.status_code == 200
    with av.open(io.BytesIO(answer.content), "r") as file:
        assert file.format.name == "mp3"
        assert sum(frame.samples for frame in file.decode(audio=0)) > 6_000
    assert all(voice["id"] == voice["name"] for voice in voices)  # Open WebUI builds its list from these


async def test_the_openai_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("clients/openai.md", "python")
    monkeypatch.chdir(tmp_path)
    async with running_node() as running:
        program = example.replace("http://127.0.0.1:8100", running.url)
        await asyncio.to_thread(run, program)
    assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"


async def test_the_table_of_voices_by_sound_is_that_of_the_engines() -> None:
    text = (DOCS / "moving-from-openai.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\w+)(?:, .*)? \| (man|woman) \|$", text, re.M)
    assert {name: voice for name, voice, _ in rows} == ALIASES
    assert {name: {"m": "man", "f": "woman"}[LIKE[name][0]] for name in OPENAI_VOICES} == {
        row[0]: row[2] for row in rows
    }
    for name, voice, _ in rows:
        described = re.search(rf"^\| \w+ \| {voice}, (.*) \|.*\|$", text, re.M)
        assert described, name
        assert re.findall(r"\b(?:wo)?man\b", described[1]) == re.findall(r"\b(?:wo)?man\b", SPEAKERS[voice][1])


def run(program: str) -> None:
    scope: dict[str, object] = {}
    exec(program, scope)
    client = typed(OpenAI, scope["client"])
    client.close()


def service_of(page: str, url: str) -> Any:
    """What the program of a framework's page makes, for a node at `url`."""
    scope: dict[str, object] = {}
    exec(blocks(page, "python")[0].replace("http://127.0.0.1:8100", url), scope)
    return scope["tts"]


async def test_the_pipecat_example_speaks() -> None:
    async with running_node() as node, running([service_of("clients/pipecat.md", node.url)]) as pipeline:
        await pipeline.turn("Hello", " there.")
        assert (pipeline.words, pipeline.errors) == (["Hello", "there."], [])
        assert len(pipeline.pcm()) > 10_000


async def test_the_livekit_example_speaks() -> None:
    async with running_node() as node:
        speaker = service_of("clients/livekit.md", node.url)
        try:
            async with speaker.stream() as stream, asyncio.timeout(30):
                stream.push_text("Hello there.")
                stream.end_input()
                assert sum([event.frame.duration async for event in stream]) > 0.2
        finally:
            await speaker.aclose()


@pytest.mark.real_time
async def test_the_python_program_tells_what_was_heard() -> None:
    (program,) = blocks("clients/python.md", "python")
    async with running_node(engine="espeak") as node:
        told = await output_of(sys.executable, "-c", program.replace("http://127.0.0.1:8100", node.url))
    heard, unheard = (line.partition("heard: ")[2].strip() for line in told.splitlines())
    assert heard
    assert unheard
    (answer,) = re.findall(r'^ANSWER = "(.*)"$', program, re.M)
    assert f"{heard} {unheard}" == answer


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
async def test_the_javascript_program_speaks() -> None:
    (program,) = blocks("clients/javascript.md", "js")
    program = program.replace("./client.js", (ROOT / "web" / "client.js").as_uri())
    start = "let samples = 0; const said = []; const play = (pcm) => (samples += pcm.length);"
    start += "const show = (words) => said.push(...words.map(({ word }) => word));"
    end = "console.log(JSON.stringify([samples, said])); await node.close();"
    async with running_node(engine="espeak") as node:
        program = "\n".join((start, program.replace("http://127.0.0.1:8100", node.url), end))
        flags = ("--experimental-websocket", "--input-type=module", "-e", program)
        samples, said = json.loads(await output_of("node", *flags))
    assert samples > 12_000
    assert said == ["Hello", "there."]


async def output_of(*command: str) -> str:
    """What a program prints, which ends without an error."""
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(30):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return told.decode()
