"""The kernels of LoRA adapters give what the modules give. Run by triton's interpreter where there is no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_tts.model.adapter_file import AdapterFile
from agent_tts.model.adapters import AdapterBank, LowRank
from agent_tts.model.fused import fuse
from agent_tts.model.kernels.low_rank import add_low_rank
from agent_tts.model.talker import PromptPositions
from tests.model import lora, tiny
from tests.model.test_adapters import loaded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def expected(x: Tensor, out: Tensor, low: LowRank, rank: int, places: Tensor) -> Tensor:
    """By the adapters of one row after the other."""
    found = out.clone()
    for row, place in enumerate(places.tolist()):
        if place >= 0:
            own = slice(place * rank, (place + 1) * rank)
            found[row] += torch.cat([up[:, own] @ (down[own] @ x[row]) for down, up in low.parts()])
    return found


@pytest.mark.parametrize("groups", [(64, 32, 32), (48,), (80, 80)])
@pytest.mark.parametrize(("rows", "inputs", "count", "rank"), [(1, 96, 2, 4), (5, 640, 3, 24), (70, 128, 2, 3)])
def test_each_row_has_its_own_adapter_or_none(
    groups: tuple[int, ...], rows: int, inputs: int, count: int, rank: int
) -> None:
    torch.manual_seed(rows)
    low = LowRank(
        torch.randn(len(groups) * count * rank, inputs, device=DEVICE),
        torch.randn(sum(groups), count * rank, device=DEVICE),
        groups,
    )
    x, out = torch.randn(rows, inputs, device=DEVICE), torch.randn(rows, sum(groups), device=DEVICE)
    places = torch.arange(rows, device=DEVICE) % (count + 1) - int(rows > 1)
    wanted = expected(x, out, low, rank, places)
    before = out.clone()
    assert add_low_rank(x, out, low=low, rank=rank, places=places) is out
    torch.testing.assert_close(out, wanted, atol=1e-3, rtol=1e-3)
    assert torch.equal(out[places < 0], before[places < 0])
    assert not torch.equal(out[places >= 0], before[places >= 0])
    residual = torch.randn_like(out)
    found = add_low_rank(x, before.clone(), residual, low=low, rank=rank, places=places)
    torch.testing.assert_close(found, wanted + residual, atol=1e-3, rtol=1e-3)


def test_what_was_never_written_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of adapters that no row has are not computed."""
    new = Tensor.new_empty

    def poisoned(one: Tensor, *size: int, **options: Any) -> Tensor:
        made: Tensor = new(one, *size, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    low = LowRank(torch.ones(8, 32, device=DEVICE), torch.ones(16, 8, device=DEVICE), (16,))
    out = torch.zeros(3, 16, device=DEVICE)
    add_low_rank(torch.ones(3, 32, device=DEVICE), out, low=low, rank=2, places=torch.tensor([-1, 2, 2], device=DEVICE))
    assert out[:, 0].tolist() == [0, 64, 64]


def test_a_step_of_kernels_with_adapters_is_that_of_modules(tmp_path: Path) -> None:
    """Of two rows, with the prompt of a third beside them."""
    base = tiny.checkpoint("base")
    files = [AdapterFile.read(lora.write_adapter(tmp_path / str(seed), base, seed=seed)) for seed in range(2)]

    def step(*, fused: bool) -> tuple[Tensor, Tensor]:
        """What two rows say, and the keys of all."""
        model = loaded(base).to(DEVICE)
        bank = AdapterBank(model, 3, 2, 4)
        if fused:
            fuse(model, bank)
        else:
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
