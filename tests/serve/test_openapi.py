"""Answers of all routes conform to the OpenAPI document, for any request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from agent_tts.config.settings import Settings
from agent_tts.engine_info import Model
from agent_tts.serve.app import create_app
from tests.examples import FACTOR
from tests.support import app_with, present, running_app, running_node, settings_of, typed, until, with_models

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

EXAMPLES = max(1, round(4 * FACTOR))  # of each kind, for each operation
TIMEOUT_S = 60  # for a request: this process computes for seconds between two requests


def rejects_what_is_wrong(ctx: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """Also true of a too long body, which is refused whatever else is wrong with it."""
    return None if response.status_code == 413 else checks.negative_data_rejection(ctx, response, case)


CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    rejects_what_is_wrong,
    checks.unsupported_method,
]


def fuzz(url: str, paths: str = "^/", examples: int = EXAMPLES) -> int:
    """Send valid and invalid examples of every operation; return their number."""
    schema = schemathesis.openapi.from_dict(create_app(Settings()).openapi()).include(path_regex=paths)
    sent = 0
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = typed(Ok, result).ok()
            for mode in GenerationMode if operation.body else [GenerationMode.POSITIVE]:

                @settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode))
                def send(case: Case[Any]) -> None:
                    nonlocal sent
                    sent += 1
                    case.call_and_validate(base_url=url, session=session, checks=CHECKS, timeout=TIMEOUT_S)

                send()
    return sent


async def test_schema_is_kept() -> None:
    async with running_node() as node:
        assert await asyncio.to_thread(fuzz, node.url) > 2 * EXAMPLES
        await until(lambda: node.node.service.speaking == 0)


async def test_schema_is_kept_by_a_node_that_takes_voices(tmp_path: Path) -> None:
    models = (Model("design", "designed", "nowhere"), Model("base", "cloned", "nowhere", 1_024))
    settings = settings_of(voices={"folder": str(tmp_path / "library")})
    async with running_app(app_with(settings, with_models(*models))) as node:
        assert await asyncio.to_thread(fuzz, node.url, r"^/v1/audio/voices", 4 * EXAMPLES) > 4 * EXAMPLES
        assert {voice.kind for voice in present(node.node.service.library).voices()} == {"designed"}
