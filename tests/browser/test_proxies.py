"""The page, WebSockets and streams over HTTP through real proxies, set up by the blocks of operating.md."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from agent_tts.engine_info import FRAME_SAMPLES
from tests.browser.test_page import unlock
from tests.certificates import Certificate, make_certificate
from tests.measure.chromium import DevTools
from tests.support import running_node, running_node_with_process
from tests.tools import needs

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time]

OPERATING = Path(__file__).parents[2] / "web" / "docs" / "operating.md"
KEY = "open-sesame"
START_S = 30.0
ANSWER_S = 30.0
FRAMES = 3  # that the engine makes before it hangs
PROXIES = [pytest.param("nginx", marks=needs("nginx")), pytest.param("caddy", marks=[needs("caddy"), pytest.mark.slow])]

NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {block}
}}
"""
OWN_HOST, FORWARDED_HOST = (f"proxy_set_header {name} $http_host;" for name in ("Host", "X-Forwarded-Host"))
CADDY = "{{\n    admin off\n    auto_https disable_redirects\n}}\n{block}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def documented(name: str, changes: dict[str, str]) -> str:
    """The block of operating.md for a proxy, with other names, ports and files."""
    (block,) = re.findall(rf"^```{name}\n(.*?)^```", OPERATING.read_text(), re.S | re.M)
    for old, new in changes.items():
        assert block.count(old) == 1, old
        block = block.replace(old, new)
    return str(block)


@asynccontextmanager
async def proxy(
    name: str, folder: Path, certificate: Certificate, node: str, edits: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[str]:
    """A proxy before a node, by the block of the docs with some edits. Gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if name == "nginx":
        changes = {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server_name speech.example.com": "server_name localhost",
            "/etc/ssl/speech.example.com.pem": str(certificate.cert),
            "/etc/ssl/speech.example.com.key": str(certificate.key),
            "http://127.0.0.1:8100": node,
        }
        form, user = NGINX, "user root;" if os.geteuid() == 0 else ""
        command = ["nginx", "-c", str(folder / name)]
    else:
        tls = f"tls {certificate.cert} {certificate.key}"
        changes = {
            "speech.example.com {": f"https://localhost:{port} {{\n    {tls}",
            "127.0.0.1:8100": node.removeprefix("http://"),
        }
        form, user = CADDY, ""
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / name)]
    block = documented(name, {**changes, **edits})
    (folder / name).write_text(user + form.format(folder=folder, block=block))
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **homes}, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    assert process.returncode is None, (folder / "log").read_text()
                    await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        yield f"https://localhost:{port}"
    finally:
        if process.returncode is None:
            # Caddy would wait for the streams that are open; nginx leaves its workers behind if it is killed.
            process.send_signal(signal.SIGKILL if name == "caddy" else signal.SIGTERM)
        await process.wait()


@pytest.mark.parametrize("name", PROXIES)
async def test_the_page_speaks_through_a_proxy(
    browser: DevTools, name: str, tmp_path: Path, certificate: Certificate
) -> None:
    """A right key is taken, on the page's own WebSocket."""
    async with running_node(engine="espeak", auth={"api_keys": [KEY]}) as node:
        async with proxy(name, tmp_path, certificate, node.url) as url, browser.page() as page:
            await page.open(url + "/")
            await unlock(page, KEY)
            await page.click("#go")
            await page.until("agentTts.speaking && document.querySelector('#said').textContent !== ''")
            assert node.node.service.speaking or node.node.guard.sessions


@pytest.mark.slow
@pytest.mark.parametrize("name", PROXIES)
async def test_speech_is_passed_on_as_it_is_made(name: str, tmp_path: Path, certificate: Certificate) -> None:
    """Over HTTP and WebSocket all that an engine has made arrives, while it makes no more."""
    auth = {"api_keys": [KEY]}
    hanging = {"instructions": f"fault:hang@{FRAMES}"}
    async with running_node_with_process(
        engine="tone", tone={"scripted_faults": True}, timeouts={"engine_heartbeat_s": 120.0}, auth=auth
    ) as node:
        async with (
            proxy(name, tmp_path, certificate, node.url) as url,
            asyncio.timeout(ANSWER_S),
            httpx.AsyncClient(
                base_url=url, verify=certificate.client(), headers={"Authorization": f"Bearer {KEY}"}, timeout=ANSWER_S
            ) as http,
        ):
            assert (await http.get("/v1/models")).status_code == 200
            address = url.replace("https", "wss") + "/v1/tts/stream"
            key = {"Authorization": f"Bearer {KEY}", "Origin": url}
            async with connect(
                address, ssl=certificate.client(), additional_headers=key, subprotocols=[Subprotocol("agent_tts.v1")]
            ) as stream:
                for message in ({"type": "text.append", "text": "Hello there."}, {"type": "context.end"}):
                    await stream.send(json.dumps({**message, "context_id": "a"}))
                while not isinstance(await stream.recv(), bytes):
                    pass
            body = {"input": "one two three four", "response_format": "pcm", **hanging}
            async with http.stream("POST", "/v1/audio/speech", json=body) as speech:
                assert speech.status_code == 200
                wanted, got = FRAMES * FRAME_SAMPLES * 2, 0
                async for chunk in speech.aiter_raw():
                    got += len(chunk)
                    if got >= wanted:
                        break
            assert got == wanted


@needs("nginx")
async def test_a_clip_of_the_largest_size_passes(tmp_path: Path, certificate: Certificate) -> None:
    """nginx itself would refuse more than a megabyte."""
    async with running_node(auth={"api_keys": [KEY]}) as node:
        size = node.node.settings.voices.clip_bytes
        async with proxy("nginx", tmp_path, certificate, node.url) as url:
            async with httpx.AsyncClient(base_url=url, verify=certificate.client(), timeout=ANSWER_S) as http:
                answer = await http.post(
                    "/v1/audio/detect", files={"file": bytes(size)}, headers={"Authorization": f"Bearer {KEY}"}
                )
    assert "nginx" not in answer.text


@needs("nginx")
async def test_the_page_tells_what_the_node_says_and_asks_for_no_key(
    browser: DevTools, tmp_path: Path, certificate: Certificate
) -> None:
    """nginx with its own Host before a node without keys: the words of the refusal, which name the setting."""
    async with running_node() as node:
        own = proxy("nginx", tmp_path, certificate, node.url, {OWN_HOST: "", FORWARDED_HOST: ""})
        async with own as url, browser.page() as page:
            await page.open(url + "/")
            await page.until("agentTts.notices.includes('connection')")
            said = await page.js("document.querySelector('#notices').innerText")
            assert "auth.allowed_origins" in said
            assert "Trying again" in said
            assert await page.js("document.querySelector('#key-form').hidden")
            assert await page.js("agentTts.state") != "locked"


@needs("nginx")
@pytest.mark.parametrize("kind", ["X-Forwarded-Host", pytest.param("Forwarded", marks=pytest.mark.slow)])
async def test_a_proxy_that_replaces_the_host_names_it(
    browser: DevTools, kind: str, tmp_path: Path, certificate: Certificate
) -> None:
    """A trusted one: the page is the node's own. Another: a right key does not help, and is not called wrong."""
    edits = {OWN_HOST: ""}
    if kind == "Forwarded":
        told = r'proxy_set_header Forwarded "for=$remote_addr;proto=$scheme;host=\"$http_host\"";'
        edits |= {FORWARDED_HOST: "", 'proxy_set_header Forwarded "";': told}
    for trusted in (True, False):
        auth = {"api_keys": [KEY], **({} if trusted else {"trusted_proxies": ["192.0.2.1"]})}
        folder = tmp_path / str(trusted)
        folder.mkdir()
        async with running_node(engine="espeak", auth=auth) as node:
            async with proxy("nginx", folder, certificate, node.url, edits) as url, browser.page() as page:
                await page.open(url + "/")
                if not trusted:
                    await page.until("agentTts.notices.includes('connection')")
                    assert "auth.trusted_proxies" in await page.js("document.querySelector('#notices').innerText")
                    continue
                await unlock(page, KEY)
                assert "wrong_key" not in await page.js("agentTts.notices")
