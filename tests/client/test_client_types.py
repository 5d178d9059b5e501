"""The options in `web/client.d.ts` are those of the one declaration: names, literals, and whether null is allowed."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from agent_tts.options import Sampling, SpeechOptions, declared
from agent_tts.text.entries import Lexicon
from tests.support import present

DECLARATIONS = Path(__file__).parents[2] / "web" / "client.d.ts"
NAMES = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
OTHERS = {Lexicon: "{ [written: string]: string | object; }", tuple[float, ...]: "number[]"}


def typescript(hint: Any) -> str:
    """The type that a client sees for a type of the declaration."""
    if get_origin(hint) is Literal:
        return " | ".join(f'"{value}"' for value in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(typescript(one) for one in get_args(hint))
    return OTHERS.get(hint) or NAMES[hint]


def shown(name: str) -> dict[str, str]:
    """The fields of a type in the declarations, all of which may be left out."""
    type_ = rf"^export type {name} = \{{\n(.*?)^\}};"
    block = present(re.search(type_, DECLARATIONS.read_text(), re.MULTILINE | re.DOTALL))
    text = " ".join(re.sub(r"/\*.*?\*/", "", block[1], flags=re.DOTALL).split())
    found = re.findall(r"(\w+)\?: ((?:\{.*?\}|[^;{])+);", text)
    assert " ".join(f"{field}?: {kind};" for field, kind in found) == text
    return dict(found)


def declared_types(kind: type) -> dict[str, str]:
    return {name: typescript(hint) for name, (hint, _, _) in declared(kind).items()}


def test_a_client_s_options_are_the_declared_ones() -> None:
    """`breaks` has no effect, and is for older clients alone."""
    expected = declared_types(SpeechOptions) | {"sampling": "Sampling", "timestamps": '"word" | "none"'}
    del expected["breaks"]
    assert shown("SpeechOptions") == expected
    assert shown("Sampling") == declared_types(Sampling)
