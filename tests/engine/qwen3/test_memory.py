"""How memory is shared out, for the released sizes on cards of 8 to 141 GB. No device: a plan is a pure function."""

from __future__ import annotations

import math
import re
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agent_tts.bench.checkpoint import SIZES, write_configuration
from agent_tts.config.settings import Qwen3
from agent_tts.engine.qwen3.compiling import _shortened
from agent_tts.engine.qwen3.memory import GIB, LIBRARIES, STREAM_POSITIONS, DeviceMemory, ModelNeeds
from agent_tts.engine.qwen3.model import CHECK, Qwen3Model
from agent_tts.errors import SettingsError
from agent_tts.model.codec import Codec
from agent_tts.model.frame import FrameModel
from agent_tts.model.kernels.architectures import ARCHITECTURES
from agent_tts.model.layers import BLOCK_SIZE
from agent_tts.model.speech import SpeechModel
from agent_tts.model.weights import build, hollow
from tests.engine.qwen3.released import hollow as hollow_checkpoint

pytest.importorskip("triton", reason="without it there are no fused kernels")

POSITIONS = 2_048
IN_USE = 0.6 * GIB  # by the context of CUDA and a display


@cache
def needs(size: str, device: str = "cuda:0", settings: Qwen3 = Qwen3()) -> ModelNeeds:  # noqa: B008 - it is frozen
    """What a released size needs on a kind of device, with settings."""
    return Qwen3Model(hollow_checkpoint(size), size, settings, torch.device(device), 64).needs


def card(gigabytes: float) -> DeviceMemory:
    total = gigabytes * GIB
    return DeviceMemory(total - IN_USE, total, Qwen3().memory, LIBRARIES)


# Card in GB, models, slots that are found, whether each has a cache of its own.
CARDS = [
    (8, "0.6B", 64, False),
    (8, "1.7B", 34, False),
    (16, "0.6B", 64, False),
    (16, "1.7B", 64, False),
    (24, "0.6B", 64, True),
    (24, "1.7B", 64, True),
    (24, "1.7B 1.7B 1.7B", 46, False),
    (48, "1.7B 1.7B 1.7B", 64, False),
    (80, "1.7B 1.7B 1.7B", 64, True),
    (141, "1.7B 1.7B 1.7B", 64, True),
]


@pytest.mark.parametrize(("gigabytes", "models", "slots", "own"), CARDS)
def test_a_card_gets_a_plan_that_fits(gigabytes: int, models: str, slots: int, own: bool) -> None:
    memory, wanted = card(gigabytes), [needs(size) for size in models.split()]
    plan = memory.plan(wanted, 64, POSITIONS, exact=False)
    assert plan.slots == plan.streams == slots
    assert all((part.blocks is None) is own for part in plan.models)
    taken = plan.libraries + sum(part.weights + part.state + part.scratch + part.cache for part in plan.models)
    assert taken <= 0.9 * memory.free
    assert plan.left == memory.free - taken
    for part in plan.models:
        assert own or slots * STREAM_POSITIONS <= (part.blocks or 0) * BLOCK_SIZE


def test_the_docs_tell_the_streams_of_each_card() -> None:
    page = (Path(__file__).parents[3] / "web/docs/engines.md").read_text()
    rows = re.findall(r"^\| (\d+) GB[^|]*\|[^|]*\| (\d+) \| (\d+) \|$", page, re.M)
    assert len(rows) == 7
    for gigabytes, small, large in rows:
        most = [card(int(gigabytes)).most([needs(size)], POSITIONS, 4_096) for size in ("0.6B", "1.7B")]
        assert most == [int(small), int(large)]


def test_slots_of_the_settings_are_kept_where_two_contexts_of_all_positions_fit() -> None:
    plan = card(8).plan([needs("1.7B")], 64, POSITIONS, exact=True)
    assert (plan.slots, plan.streams) == (64, 27)


FP8 = Qwen3(weights="fp8")


def test_weights_in_fp8_take_less_once_they_are_loaded() -> None:
    plain, small = needs("1.7B"), needs("1.7B", settings=FP8)
    saved = plain.weights - small.weights
    assert 1.3 * GIB < saved < 1.4 * GIB  # of 2.7 in the layers
    assert (plain.loading, small.loading) == (0, saved + CHECK)
    assert card(8).most([small], POSITIONS, 64) > 1.5 * card(8).most([plain], POSITIONS, 64)


def test_a_cache_in_fp8_has_room_for_twice_the_streams() -> None:
    plain, small = needs("1.7B"), needs("1.7B", settings=Qwen3(kv_cache="fp8"))
    assert (small.position, small.weights, small.loading) == (plain.position // 2, plain.weights, CHECK)


def test_a_plan_has_room_for_the_weights_that_are_not_yet_in_fp8() -> None:
    small = needs("1.7B", settings=FP8)
    plan = card(24).plan([small], 1, 64, exact=True)
    (part,) = plan.models
    assert part.state + part.scratch + part.cache == small.loading
    assert card(5.5).fit([small], 1, 64) is None
    assert card(5.5).fit([replace(small, loading=0)], 1, 64) is not None


def test_engines_of_one_card_split_it() -> None:
    memory = card(24)
    half = DeviceMemory(memory.free, memory.total, memory.share / 2, LIBRARIES)
    assert half.plan([needs("1.7B")], 64, POSITIONS, exact=True).left > 0.5 * memory.free


@pytest.mark.parametrize(
    ("gigabytes", "models", "slots", "told"),
    [
        (8, "1.7B 1.7B 1.7B", 64, r"of qwen3.models, 1.7B alone would fit$"),
        (16, "1.7B 1.7B 1.7B", 64, r"of qwen3.models, 1.7B, 1.7B alone would fit$"),
        (8, "1.7B", 512, r"512 slots of 2048 positions need 9\.\d GiB at least .*1.7B 4\.1.*slots: \d+ would fit$"),
        (6.1, "1.7B", 64, r"qwen3.max_model_len: \d+ with slots: 1 would fit$"),
        (4, "1.7B", 64, r"of 3\.4 GiB that are free, models may take 2\.6; free the device, or use a smaller model$"),
    ],
)
def test_what_cannot_fit_is_refused_with_numbers_and_with_settings_that_fit(
    gigabytes: float, models: str, slots: int, told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        card(gigabytes).plan([needs(size) for size in models.split()], slots, POSITIONS, exact=True)


def test_the_log_says_how_the_memory_is_shared_out() -> None:
    assert card(141).plan([needs("1.7B")], 64, POSITIONS, exact=True).lines == [
        "64 slots of 2048 positions, memory for 64 streams at once",
        "1.7B: weights 4.06 GiB, cache 14.23 (of each slot), codec 0.53, graphs and scratch 0.37",
        "libraries 0.50 GiB; 120.72 of 140.40 GiB stay free",
    ]


def test_a_device_that_tells_no_memory_has_enough() -> None:
    plan = DeviceMemory(math.inf, math.inf, 0.9).plan([needs("0.6B", "cpu")], 4, POSITIONS, exact=False)
    assert (plan.slots, len(plan.lines)) == (4, 2)


class Unmade:
    """Makes no launch."""

    architecture = ARCHITECTURES["sm_90"]

    def launched(self, kernel: object, arguments: object) -> None:
        pass


class Live(TorchDispatchMode):
    """Counts the bytes of the meta device that are alive, without those that were there before."""

    def __init__(self, before: list[torch.Tensor]) -> None:
        super().__init__()
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in before}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self._gone, storage._cdata)
        return out

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


@pytest.mark.parametrize("fused", [True, False])
def test_the_work_of_a_row_is_what_a_step_has_alive(tmp_path: Path, fused: bool) -> None:
    """Of a step on the meta device, with so many layers as have everything alive."""
    from agent_tts.model.kernels.launch import unmade
    from agent_tts.model.speech import put_kernels

    config, rows = _shortened(write_configuration(tmp_path, SIZES["1.7B"], "custom_voice")), 64
    model = SpeechModel(build(FrameModel, config), build(Codec, config.codec))
    hollow(model.frame, torch.bfloat16 if fused else torch.float32)
    hollow(model.codec, torch.float16 if fused else torch.float32)
    if fused:
        put_kernels(model)
    state = model.init_state(rows + 1, POSITIONS)
    run, who = (torch.empty(rows, dtype=dtype, device="meta") for dtype in (torch.bool, torch.int64))

    def step() -> None:
        with unmade(Unmade()) if fused else nullcontext():
            model.step(state, run, who)

    step()  # what kernels keep is made in the first
    tensors = [*model.frame.parameters(), *model.codec.parameters(), *model.frame.buffers(), *model.codec.buffers()]
    codec = state.codec
    tensors += [state.frame.cache.keys, state.frame.cache.values, codec.keys, codec.values, *codec.histories]
    live = Live(tensors)
    with live:
        step()
    work = needs("1.7B", "cuda:0" if fused else "cpu").work
    assert 0.3 * work < live.most / rows < work


def test_a_setting_of_apple_without_it_is_refused() -> None:
    from agent_tts.model.device import Device

    if sys.platform == "darwin":
        pytest.skip("it may be there")
    with pytest.raises(SettingsError, match="mps is not there"):
        Device.named("mps")
