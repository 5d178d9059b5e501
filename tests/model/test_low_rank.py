"""The kernels of LoRA adapters give what the modules give. Run by triton's interpreter where there is no GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.model.adapter_file import AdapterFile
from agent_tts.model.adapters import AdapterBank, LowRank
from agent_tts.model.fused import fuse
from agent_tts.model.kernels.low_rank import add_low_rank
from agent_tts.model.layers import RMSNorm
from agent_tts.model.quantised import EightBits, Quantised
from agent_tts.model.talker import PromptPositions
from tests.model import lora, tiny

pytestmark = pytest.mark.model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def expected(x: Tensor, product: Tensor, low: LowRank, rank: int, places: Tensor) -> Tensor:
    """By the adapters of one row after the other."""
    found = product.clone()
    for row, place in enumerate(places.tolist()):
        if place >= 0:
            own = slice(place * rank, (place + 1) * rank)
            found[row] += torch.cat([up[:, own] @ (down[own] @ x[row]) for down, up in low.parts()])
    return found


@pytest.mark.parametrize(
    ("groups", "rows", "inputs", "count", "rank"),
    [
        ((64, 32, 32), 1, 96, 2, 4),
        ((48,), 1, 96, 2, 4),
        ((64, 32, 32), 5, 64, 3, 48),
        ((80, 80), 5, 64, 3, 48),
        ((48,), 70, 32, 2, 3),
    ],
)
def test_each_row_has_its_own_adapter_or_none(
    groups: tuple[int, ...], rows: int, inputs: int, count: int, rank: int
) -> None:
    torch.manual_seed(rows)
    new = partial(torch.randn, device=DEVICE)
    everyone, outputs = count * rank, sum(groups)
    low = LowRank(new(len(groups) * everyone, inputs) * inputs**-0.5, new(outputs, everyone) * rank**-0.5, groups)
    x, beside = new(rows, inputs), 16  # columns of others
    whole = torch.cat((new(rows, outputs), x @ low.down.T, new(rows, beside)), dim=1)
    product, columns = whole[:, :outputs], whole[:, outputs:]
    places = torch.arange(rows, device=DEVICE) % (count + 1) - int(rows > 1)
    add = partial(add_low_rank, product, columns, low=low, rank=rank, places=places)
    wanted = expected(x, product, low, rank, places)
    close = partial(torch.testing.assert_close, atol=2e-3, rtol=1e-3)
    found = add().x
    close(found, wanted)
    assert torch.equal(found[places < 0], product[places < 0])
    assert not torch.equal(found[places >= 0], product[places >= 0])

    residual, norm = new(rows, outputs), RMSNorm(outputs, 1e-6).to(DEVICE)
    norm.weight = nn.Parameter(new(outputs), requires_grad=False)
    left = add(residual=residual, norm=norm)
    close(left.x, wanted + residual)
    if left.weighted is not None and left.squares is not None:  # a power of 2 of parts
        close(left.weighted, left.x * norm.weight)
        close(left.squares.sum(0), left.x.square().sum(1), rtol=1e-4)
    assert (left.weighted is not None) == (groups == (64, 32, 32))  # the others have 3 and 10 parts, of 16 outputs
    if len(groups) == 2:
        close(add(gated=True).x, F.silu(wanted[:, : groups[0]]) * wanted[:, groups[0] :])


@pytest.mark.parametrize("e4m3", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_step_of_kernels_with_adapters_is_that_of_modules(tmp_path: Path, e4m3: bool) -> None:
    """Of two rows, with the prompt of a third beside them. Adapters stay as they are beside weights in e4m3."""
    base = tiny.checkpoint("base")
    files = [AdapterFile.read(lora.write_adapter(tmp_path / str(seed), base, seed=seed)) for seed in range(2)]

    def step(*, fused: bool) -> tuple[Tensor, Tensor]:
        """What two rows say, and the keys of all."""
        model = tiny.frame_model(base).to(DEVICE)
        bank = AdapterBank(model, 3, 2, 4)
        if fused:
            fuse(model, bank, EightBits(weights=e4m3))
        else:
            for module in model.talker.layers.modules():
                if e4m3 and isinstance(module, nn.Linear):
                    module.weight = nn.Parameter(Quantised.of(module.weight).dequantised(torch.float32), False)
            bank.adapt()
        adapters = [bank.load(file.weights, file) for file in files]
        bank.assign(1, adapters[0])
        bank.assign(2, adapters[1])
        cache = model.init_state(3, 16).cache
        cache.keys.zero_()
        cache.values.zero_()
        torch.manual_seed(0)
        x, prompt = torch.randn(2, model.config.talker.hidden_size), torch.randn(3, model.config.talker.hidden_size)
        rows = torch.tensor([0, 1], device=DEVICE)
        prompts = PromptPositions(prompt.to(DEVICE), torch.full((3,), 2, device=DEVICE), torch.arange(3, device=DEVICE))
        positions = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        if fused:
            said = model.ops.talk(x.to(DEVICE), positions, cache, rows, prompts)
        else:
            said = model.ops.talk(x.to(DEVICE), positions, cache, rows, None)
            model.ops.prefill(prompts, cache, 3)
        return said, cache.keys

    with torch.inference_mode():
        said, keys = step(fused=True)
        wanted, wanted_keys = step(fused=False)
    torch.testing.assert_close(said, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(keys, wanted_keys, atol=1e-4, rtol=1e-4)
