from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from agent_tts.cli.options import NOT_ASKED, SpeechFlags, command, speech_options
from agent_tts.options import Sampling, SpeechOptions, declared


@dataclasses.dataclass(frozen=True)
class Colours:
    red: int = 1
    green: int | None = None


def test_every_option_of_speech_is_a_flag_with_its_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(SpeechFlags)}
    options = declared(SpeechOptions) | declared(Sampling)
    assert fields == {name: default for name, (_, _, default) in options.items() if name not in NOT_ASKED}


def test_without_values_the_flags_mean_unpaced_speech_with_the_defaults() -> None:
    assert speech_options(SpeechFlags(), None) == SpeechOptions(lead_ms=None)


def test_each_flag_sets_its_option() -> None:
    sampling: dict[str, Any] = {"temperature": 0.5, "top_k": 25, "top_p": 0.5, "repetition_penalty": 0.5}
    flags = SpeechFlags(voice="nova", speed=1.5, breaks=True, **sampling)
    wanted = SpeechOptions("nova", speed=1.5, breaks=True, sampling=Sampling(**sampling), lead_ms=None, model="tts-1")
    assert speech_options(flags, "tts-1") == wanted


def test_a_group_of_options_becomes_parameters_and_is_passed_as_a_group() -> None:
    got: list[Any] = []

    @command
    def paint(name: str, colours: Colours = Colours(red=3)) -> None:
        got.append((name, colours))

    parameters = inspect.signature(paint).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert defaults == {"name": inspect.Parameter.empty, "red": 3, "green": None}
    paint(name="wall", red=3, green=5)
    assert got == [("wall", Colours(3, 5))]
