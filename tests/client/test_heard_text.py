"""The rule for heard text, in Python and in JavaScript, on the same cases."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from agent_tts.messages import Word
from agent_tts.protocol.heard import heard_text
from agent_tts.text.words import UNSPACED
from tests.client.test_javascript import WEB, told
from tests.tools import needs

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


OF_CLIENT = """
const matches = (letter) => {
  const one = new RegExp(`^${letter}`, "u");
  return Array.from({ length: 0x110000 }, (_, code) => code).filter((code) => one.test(String.fromCodePoint(code)));
};
const ofClient = UNSPACED;
{
"""
OF_PAGE = """
console.log(JSON.stringify([ofClient, UNSPACED].map(matches)));
}
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_heard_text(case: dict[str, Any]) -> None:
    words = [Word(*word) for word in case["words"]]
    assert heard_text(case["text"], words, case["played_ms"]) == (case["heard"], case["unheard"])


@needs("node")
async def test_heard_text_in_javascript(tmp_path: Path) -> None:
    script = tmp_path / "heard.mjs"
    script.write_text((WEB / "client.js").read_text() + SCRIPT.format(cases=json.dumps(CASES)))
    assert json.loads(await told(str(script))) == [[case["heard"], case["unheard"]] for case in CASES]


@needs("node")
async def test_scripts_without_spaces_are_the_same_in_javascript(tmp_path: Path) -> None:
    """In the client and on the page, of all characters that this Python knows."""
    script = tmp_path / "scripts.mjs"
    script.write_text(
        (WEB / "client.js").read_text() + OF_CLIENT + (WEB / "scripts.js").read_text().replace("export ", "") + OF_PAGE
    )
    known = [code for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    mine = {code for code in known if re.match(UNSPACED, chr(code))}
    assert len(mine) > 90_000
    for theirs in json.loads(await told(str(script))):
        assert mine == set(theirs).intersection(known)
