"""The rule for heard text, in Python and in JavaScript, on the same cases."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_tts.messages import Word
from agent_tts.protocol.heard import heard_text
from tests.client.test_javascript import WEB, told

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "heard_text.json").read_text())

# Calls the function of the client, which does not export it.
SCRIPT = """
export {{ heardText }};
const found = [];
for (const {{ text, words, played_ms }} of {cases}) {{
  const named = words.map(([word, start_ms, end_ms, char_start, char_end]) => (
    {{ word, start_ms, end_ms, char_start, char_end }}));
  found.push(Object.values(heardText([...text], named, played_ms)));
}}
console.log(JSON.stringify(found));
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_heard_text(case: dict[str, Any]) -> None:
    words = [Word(*word) for word in case["words"]]
    assert heard_text(case["text"], words, case["played_ms"]) == (case["heard"], case["unheard"])


@pytest.mark.node
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
async def test_heard_text_in_javascript(tmp_path: Path) -> None:
    script = tmp_path / "heard.mjs"
    script.write_text((WEB / "client.js").read_text() + SCRIPT.format(cases=json.dumps(CASES)))
    assert json.loads(await told(str(script))) == [[case["heard"], case["unheard"]] for case in CASES]
