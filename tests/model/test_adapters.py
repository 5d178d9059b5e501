"""A row with an adapter is a row of the checkpoint that has it merged, whatever adapters the other rows have."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_tts.errors import AtCapacity
from agent_tts.model import adapter_file
from agent_tts.model.adapter_file import AdapterFile
from agent_tts.model.adapters import Adapter, AdapterBank
from agent_tts.model.config import ModelConfig, SamplingParams
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.prompt import VECTOR, PromptVoice, build_prompt
from tests.model import lora, tiny

pytestmark = pytest.mark.model

FRAMES = 4
MODEL_LEN = 64


def adapting(model: FrameModel, rows: int, count: int, rank: int) -> AdapterBank:
    bank = AdapterBank(model, rows, count, rank)
    bank.adapt()
    return bank


def forced(model: FrameModel, state: FrameState, rows: int) -> Tensor:
    """Logits of frames whose codes are given: [FRAMES, 16, rows, 2048]."""
    codes, found = torch.randint(2048, (FRAMES, 16), generator=torch.Generator().manual_seed(7)), []

    for frame in codes:
        logits: list[Tensor] = []

        def choose(these: Tensor, codebook: int, frame: Tensor = frame, logits: list[Tensor] = logits) -> Tensor:
            logits.append(these[:, :2048])
            return frame[codebook].expand(rows)

        model.step(state, torch.ones(rows, dtype=torch.bool), choose)
        found.append(torch.stack(logits))
    return torch.stack(found)


def said(model: FrameModel, bank: AdapterBank | None, *adapters: Adapter | None) -> Tensor:
    """Logits as those of `forced`, of rows that have these adapters or none."""
    state = model.init_state(len(adapters), MODEL_LEN)
    prompt = build_prompt(model.config, PromptVoice(VECTOR), role=tiny.ROLE, text=tiny.TEXT)
    for row, adapter in enumerate(adapters):
        if bank is not None:
            bank.assign(row, adapter)
        tiny.admit(model, state, row, prompt, SamplingParams(), tiny.speaker_vector())
    return forced(model, state, len(adapters))


def base() -> Path:
    return tiny.checkpoint("base")


def an_adapter(folder: Path, **entries: Any) -> Path:
    """One whose configuration has these entries."""
    return lora.write_adapter(folder / "a", base(), seed=0, **entries)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters of different ranks and scales, from each place that PEFT can wrap."""
    made = tmp_path_factory.mktemp("adapters")
    ranks, scaled = (4, 8, 3), (False, False, True)
    return [
        lora.write_adapter(made / str(seed), base(), seed=seed, rank=rank, prefix=prefix, use_rslora=by_root)
        for seed, (rank, prefix, by_root) in enumerate(zip(ranks, lora.PREFIXES, scaled, strict=True))
    ]


def test_rows_with_different_adapters_are_rows_of_the_merged_checkpoints(folders: list[Path], tmp_path: Path) -> None:
    model = tiny.frame_model(base())
    bank = adapting(model, rows=5, count=3, rank=8)
    adapters = [bank.load(folder, AdapterFile.read(folder)) for folder in folders]
    together = said(model, bank, None, *adapters, adapters[0])
    for row, folder in enumerate([None, *folders, folders[0]]):
        alone = tiny.frame_model(lora.merge(base(), folder, tmp_path / str(row)) if folder else base())
        expected = said(alone, None, None)[:, :, 0]
        torch.testing.assert_close(together[:, :, row], expected, atol=1e-4, rtol=1e-4)
    for row in range(1, 4):  # proves that the adapters change something
        assert float((together[:, :, row] - together[:, :, 0]).abs().max()) > 0.1


def test_a_row_without_an_adapter_is_bit_for_bit_what_it_is_without_the_bank(folders: list[Path]) -> None:
    model = tiny.frame_model(base())
    expected = said(model, None, None, None)
    bank = adapting(model, rows=2, count=1, rank=4)
    found = said(model, bank, None, bank.load("a", AdapterFile.read(folders[0])))
    assert torch.equal(found[:, :, 0], expected[:, :, 0])
    assert not torch.equal(found[:, :, 1], expected[:, :, 1])


def test_a_place_is_free_when_nothing_refers_to_its_adapter_and_keeps_nothing_of_it(folders: list[Path]) -> None:
    """Mutation: a smaller adapter that follows a larger one in its place would keep some of its columns."""
    first, second, third = (AdapterFile.read(folder) for folder in folders)
    model = tiny.frame_model(base())
    bank = adapting(model, rows=1, count=1, rank=8)
    large = bank.load("large", second)
    assert bank.load("large", second) is large
    with pytest.raises(AtCapacity, match="takes 1 LoRA adapters at once"):
        bank.load("small", first)
    del large
    gc.collect()
    reused = said(model, bank, bank.load("small", third))
    model = tiny.frame_model(base())
    bank = adapting(model, rows=1, count=1, rank=8)
    assert torch.equal(said(model, bank, bank.load("small", third)), reused)


def test_the_memory_of_the_places_is_known_ahead() -> None:
    model = tiny.frame_model(base())
    bank = AdapterBank(model, rows=1, count=3, rank=8)
    held = sum(low.down.nbytes + low.up.nbytes for layer in bank.layers for low in layer)
    assert AdapterBank.nbytes(model.config.talker, 3, 8, torch.float32) == held


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only 'LORA' is supported"),
        ({"use_dora": True}, "use_dora is True, which is not supported"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is"),
        ({"modules_to_save": ["codec_head"]}, "modules_to_save is"),
        ({"something_new": 3}, "something_new is 3"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights changes the base model"),
        ({"auto_mapping": {"base_model_class": "Qwen3TTSTalkerCodePredictorModel"}}, "the code predictor: only linear"),
        ({"r": 0}, "r is 0"),
        ({"r": "4"}, "r: '4' is not int"),
    ],
)
def test_another_kind_of_adapter_is_refused(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        AdapterFile.read(an_adapter(tmp_path, **entries))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (DEEP, "not valid JSON"),
        (f'{{"r": {DEEP}}}', "not valid JSON"),
        ("[" * 900 + "]" * 900, "has to be an object"),
        (f'{{"peft_type": {"[" * 900 + "]" * 900}}}', "peft_type is"),
        (f'{{"peft_type": "{"x" * 5_000_000}"}}', "peft_type is 'xxx"),
        (f'{{"peft_type": "LORA", "{"x" * 5_000_000}": 1}}', "adapter_config.json: xxx"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 1' + "0" * 400 + "}", "lora_alpha: 1000"),
        ('{"peft_type": "LORA", "r": 1' + "0" * 400 + ', "lora_alpha": 1, "use_rslora": true}', "r is 1000"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 1e999}', "lora_alpha inf"),
        ('{"peft_type": "LORA", "r": NaN, "lora_alpha": 1}', "r: nan is not int"),
        ('{"r": 1' + "0" * 5_000 + "}", "not valid JSON"),
        (" " * (17 << 20), "more than 16 MiB"),
    ],
)
def test_what_a_file_says_is_told_in_few_words(written: str, message: str, tmp_path: Path) -> None:
    folder = an_adapter(tmp_path)
    (folder / adapter_file.CONFIG).write_text(written)
    with pytest.raises(CheckpointError, match=message) as refused:
        AdapterFile.read(folder)
    assert len(str(refused.value)) < 3_000


def renamed(old: str, new: str) -> Any:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("talker.model", "talker.code_predictor.model"), "code_predictor.*only linear layers of the talker"),
        (renamed("q_proj", "r_proj"), "r_proj.*the talker has 2 layers, each with self_attn.q_proj, "),
        (renamed("layers.1.", "layers.9."), "layers.9.*the talker has 2 layers"),
        (lambda tensors: dict([*tensors.items()][1:]), "lora_A and lora_B come in pairs"),
        (lambda tensors: {}, "it is empty"),
        (lambda tensors: {name: tensor[:2] for name, tensor in tensors.items()}, r"\(2, \d+\) instead of \(4, \d+\)"),
        (lambda tensors: {name: tensor * torch.nan for name, tensor in tensors.items()}, "not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    folder = an_adapter(tmp_path)
    weights = folder / adapter_file.WEIGHTS
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(weights)).items()}, weights)
    model = tiny.frame_model(base())
    with pytest.raises(CheckpointError, match=message):
        load(model, folder)


def load(model: FrameModel, folder: Path) -> None:
    file = AdapterFile.read(folder)
    file.check(model.config.talker, "a-model")
    AdapterBank(model, rows=1, count=1, rank=8).load("a", file)


def test_the_released_base_that_an_adapter_names_has_to_be_the_model(tmp_path: Path) -> None:
    cached = "/root/.cache/hub/models--Qwen--Qwen3-TTS-12Hz-1.7B-Base/snapshots/abc"
    folder = an_adapter(tmp_path, base_model_name_or_path=cached)
    file, talker = AdapterFile.read(folder), ModelConfig.read(base()).talker
    file.check(talker, "Qwen3-TTS-12Hz-1.7B-Base")
    file.check(talker, "a-base-of-our-own")
    with pytest.raises(CheckpointError, match=r"trained on Qwen3-TTS-12Hz-1.7B-Base; this model is \S+0.6B-Base"):
        file.check(talker, "Qwen3-TTS-12Hz-0.6B-Base")


def test_rank_and_size_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = an_adapter(tmp_path)
    with pytest.raises(CheckpointError, match=r"an adapter of rank 4; qwen3.adapter_rank allows 2"):
        AdapterBank(tiny.frame_model(base()), rows=1, count=1, rank=2).load("a", AdapterFile.read(folder))
    monkeypatch.setattr(adapter_file, "MAX_BYTES", 1 << 10)
    with pytest.raises(CheckpointError, match="more than"):
        AdapterFile.read(folder)
    (folder / adapter_file.WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="missing from the checkpoint; only safetensors are read"):
        AdapterFile.read(folder)
