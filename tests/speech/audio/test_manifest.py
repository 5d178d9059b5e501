"""Files with a signed manifest, read back by C2PA's own library."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("c2pa", reason="pip install 'agent-tts[c2pa]'")

from c2pa import Reader

from agent_tts.cli.sinks import FileSink
from agent_tts.config import files
from agent_tts.errors import SettingsError
from agent_tts.serve.access.guard import Client
from agent_tts.serve.access.ledger import MAX_WHOLE_FILES
from agent_tts.serve.routes import signing, speech_response
from agent_tts.sound.provenance import DIGITAL_SOURCE, MARK, has_mark
from agent_tts.speech.audio.files import CONTENT_TYPES
from agent_tts.speech.audio.manifest import SIGNABLE, signer_of
from tests.certificates import make_certificate, make_signer
from tests.speech.audio.test_files import decode
from tests.support import running_node


def read(file: bytes, format: str) -> dict[str, Any]:
    """The manifests of a file, and whether they are valid."""
    with Reader(CONTENT_TYPES[format], io.BytesIO(file)) as reader:
        found: dict[str, Any] = json.loads(reader.json())
    return found


@pytest.mark.node
async def test_a_file_is_signed_where_a_request_wants_it(tmp_path: Path) -> None:
    """Its signature is valid; that nobody here trusts the signer is all that is found."""
    signer = make_signer(tmp_path)
    c2pa = {"certificate": str(signer.cert), "key": str(signer.key)}
    async with running_node(c2pa=c2pa) as node, httpx.AsyncClient(base_url=node.url, timeout=60) as http:
        for format in SIGNABLE:
            body = {"model": "tts-1", "input": "Hello there.", "response_format": format, "c2pa": True}
            response = await http.post("/v1/audio/speech", json=body)
            assert response.status_code == 200, response.text
            plain = await http.post("/v1/audio/speech", json=body | {"c2pa": False})
            found = read(response.content, format)
            assert [problem["code"] for problem in found["validation_status"]] == ["signingCredential.untrusted"]
            (actions,) = (
                one["data"]["actions"]
                for one in found["manifests"][found["active_manifest"]]["assertions"]
                if one["label"].startswith("c2pa.actions")
            )
            assert actions[0]["digitalSourceType"] == DIGITAL_SOURCE
            assert has_mark(response.content)
            assert (decode(response.content, format)[0] == decode(plain.content, format)[0]).all()
            changed = bytearray(response.content)
            changed[144 if format == "wav" else -200] ^= 1  # a WAV file ends with the manifest
            assert read(bytes(changed), format)["validation_state"] == "Invalid"
        for wrong in ({"response_format": "opus"}, {"stream_format": "sse"}):
            refused = await http.post("/v1/audio/speech", json=body | {"response_format": "wav"} | wrong)  # pyrefly: ignore[unbound-name]
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "c2pa")


async def test_a_command_signs_its_files(tmp_path: Path) -> None:
    signer = make_signer(tmp_path / "signer")
    for format in SIGNABLE:
        sink = FileSink(tmp_path / f"a.{format}", signer_of(str(signer.cert), str(signer.key), files.read))
        await sink.write(bytes(96_000))
        await sink.close(True)
        assert read((tmp_path / f"a.{format}").read_bytes(), format)["validation_state"] == "Valid"


@pytest.mark.node
async def test_a_node_without_a_certificate_says_so() -> None:
    async with running_node() as node, httpx.AsyncClient(base_url=node.url, timeout=60) as http:
        body = {"model": "tts-1", "input": "Hello there.", "response_format": "wav", "c2pa": True}
        refused = (await http.post("/v1/audio/speech", json=body)).json()["error"]
    assert "this node has no certificate to sign with" in refused["message"]


def test_certificates_that_cannot_sign_are_refused_at_the_start(tmp_path: Path) -> None:
    own, signer = make_certificate(tmp_path / "own"), make_signer(tmp_path / "signer")
    os.mkfifo(tmp_path / "pipe")
    for cert, key, said in (
        (own.cert, own.key, "cert.pem cannot sign files"),
        (signer.cert, own.key, "signer.pem cannot sign files"),
        (signer.cert, signer.cert, "it has to be a private key in PEM"),
        (tmp_path / "none.pem", signer.key, "none.pem cannot be read: No such file"),
        (signer.cert, tmp_path / "pipe", "pipe is no regular file"),
    ):
        with pytest.raises(SettingsError, match=said):
            signer_of(str(cert), str(key), files.read)


@pytest.mark.node
async def test_signing_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file, of the files at once, and of time; a front carries callers beside it."""
    made = make_signer(tmp_path)
    c2pa = {"certificate": str(made.cert), "key": str(made.key)}
    body = {"model": "tts-1", "input": "Hello there.", "response_format": "wav", "c2pa": True}
    async with running_node(c2pa=c2pa) as node, httpx.AsyncClient(base_url=node.url, timeout=60) as http:
        with contextlib.ExitStack() as taken:
            for _ in range(MAX_WHOLE_FILES):
                taken.enter_context(await node.node.guard.place("whole files", Client(None)))
            refused = await http.post("/v1/audio/speech", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "at_capacity")
        with monkeypatch.context() as patch:
            patch.setattr(speech_response, "MAX_WHOLE", 1_000)
            refused = await http.post("/v1/audio/speech", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "text_too_long")
        monkeypatch.setattr(signing, "SIGN_S", 0.001)
        refused = await http.post("/v1/audio/speech", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "internal")


def test_the_mark_is_found_wherever_it_is() -> None:
    """Also across the pieces of a file that are looked at at once."""
    for encoding in ("ascii", "utf-16-le", "utf-16-be"):
        for start in (0, 65_530, 2 * 65_536 - 1):
            assert has_mark(bytes(start) + MARK.encode(encoding) + b"end")
    assert not has_mark(bytes(200_000) + MARK[:-1].encode())
